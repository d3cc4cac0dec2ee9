"""Resources and scopes of requests, whichever way they take: by the exit, the disk, a signal, or a forked child."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.pipelines import HOLD_ENCODER
from tests.support.spools import folders, load
from tests.support.validity.envelope import LEVELS

import monitel
from monitel_otel import SCHEMA_URL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

THEIRS = "https://example.test/theirs"
#: A pipeline for the URL in the first argument, or offline.
CONFIGURE = """\
pipeline = monitel_otlp.configure(
    endpoint=sys.argv[1] if sys.argv[1] != "offline" else None,
    spool_dir="spool",
    export_interval=3600.0,
    service_name="train",
    spans=True,
)
"""
#: Every kind of item, of monitel and of the application.
RECORD = f"""\
from opentelemetry import _logs, metrics, trace
from monitel.profiler import record_function

monitel.set_step(3)
loss = Stat("loss", [COUNT, MEAN], 60.0)
loss.add(1)
loss.flush()
loss.add(2)
monitel.log({{"accuracy": 0.5}})
monitel.counter("samples").add(5)
with monitel.WaitCounter("batch").guard(), record_function("forward"):
    monitel.emit("epoch")
metrics.get_meter("mine", "1", schema_url={THEIRS!r}).create_counter("batches").add(1)
metrics.get_meter("other").create_up_down_counter("open").add(1)
_logs.get_logger("mine", "1", schema_url={THEIRS!r}).emit(body="own", event_name="own")
with trace.get_tracer("mine", "1", schema_url={THEIRS!r}).start_as_current_span("own"):
    pass
"""
FORK = f"""\
if pid := os.fork():
    assert os.waitpid(pid, 0) == (pid, 0)
    os._exit(0)
{RECORD}"""
ALL = {
    *((signal, "monitel", SCHEMA_URL) for signal in LEVELS),
    *((signal, "mine", THEIRS) for signal in LEVELS),
    ("metrics", "other", ""),
}


def headers(requests: Iterable[tuple[str, Any]]) -> set[tuple[str, str, str]]:
    """Check the resources and scopes of requests, and return signal, name and schema of all scopes."""
    found = set()
    for signal, message in requests:
        resources, scopes, _ = LEVELS[signal]
        (resource,) = getattr(message, resources)
        assert SCHEMA_URL == resource.schema_url
        names = [each.scope.name for each in getattr(resource, scopes)]
        assert sorted({*names}) == sorted(names)
        assert signal != "metrics" or "monitel" in names
        for each in getattr(resource, scopes):
            found.add((signal, each.scope.name, each.schema_url))
            assert each.scope.name != "monitel" or monitel.__version__ == each.scope.version
    return found


def sent(receiver: Receiver) -> list[tuple[str, Any]]:
    """Return the signal and message of each request."""
    return [(request.signal, request.message) for request in receiver.requests]


def on_disk(folder: Path) -> list[tuple[str, Any]]:
    """Return the signal and message of each request in the spools below a folder."""
    return [(request.signal, request.message()) for each in folders(folder) for request in load(each)]


def test_requests_on_disk_have_the_same_resource_and_scopes(train: Run, tmp_path: Path) -> None:
    """Of a process without endpoint, also if nothing could be encoded before its exit."""
    train(CONFIGURE + RECORD, "offline")
    assert ALL == headers(on_disk(tmp_path / "spool"))
    train(CONFIGURE.replace('"spool"', '"raw"') + HOLD_ENCODER + RECORD, "offline")
    instruments = {("metrics", "mine", THEIRS), ("metrics", "other", "")}  # the SDK is not asked for their values
    assert ALL - instruments == headers(on_disk(tmp_path / "raw"))


def test_requests_after_sigterm_have_the_same_resource_and_scopes(receiver: Receiver, terminate: Terminate) -> None:
    """The exit by a signal sends everything."""
    terminate(CONFIGURE + RECORD + 'print("ready", flush=True)\nsys.stdin.read()\n', receiver.url, within=20)
    assert ALL == headers(sent(receiver))


def test_requests_of_a_forked_child_have_the_same_resource_and_scopes(receiver: Receiver, train: Run) -> None:
    """The child has no providers; system metrics and instruments of the application are the parent's alone."""
    train(CONFIGURE.replace("spans=True", "spans=True, system=True") + FORK, receiver.url)
    assert {(signal, "monitel", SCHEMA_URL) for signal in LEVELS} == headers(sent(receiver))
    assert not [point for point in receiver.all_points() if point.metric.startswith("process.")]
