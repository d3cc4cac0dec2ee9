"""Resources and scopes of requests: one scope of monitel with its schema, and the application's as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.resources import Resource
from tests.support.pipelines import HOLD_ENCODER
from tests.support.spools import folders, load
from tests.support.validity.envelope import LEVELS

import monitel
from monitel_otel import SCHEMA_URL
from monitel_otlp.delivery.request_splitting import split

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

    from monitel_otlp.messages.request import FrozenRequest

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


def headers(requests: Iterable[tuple[str, Any]], schema_url: str = SCHEMA_URL) -> set[tuple[str, str, str]]:
    """Check the resources and scopes of requests, and return signal, name and schema of all scopes.

    Args:
        requests: Signals and messages.
        schema_url: The expected schema of all resources.
    """
    found = set()
    for signal, message in requests:
        resources, scopes, _ = LEVELS[signal]
        (resource,) = getattr(message, resources)
        assert schema_url == resource.schema_url
        names = [each.scope.name for each in getattr(resource, scopes)]
        assert sorted(set(names)) == sorted(names)
        assert signal != "metrics" or "monitel" in names
        for each in getattr(resource, scopes):
            found.add((signal, each.scope.name, each.schema_url))
            if each.scope.name == "monitel":
                assert monitel.__version__ == each.scope.version
            if signal == "metrics":
                metrics = [metric.name for metric in each.metrics]
                assert sorted(set(metrics)) == sorted(metrics)
    return found


def sent(receiver: Receiver) -> list[tuple[str, Any]]:
    """Return the signal and message of each request."""
    return [(request.signal, request.message) for request in receiver.requests]


def on_disk(folder: Path) -> list[tuple[str, Any]]:
    """Return the signal and message of each request in the spools below a folder."""
    return [(request.signal, request.message()) for each in folders(folder) for request in load(each)]


def test_each_request_has_one_scope_of_monitel(receiver: Receiver, train: Run) -> None:
    """All metrics of monitel are in the scope, and it has name, version and schema; the application's stay as given."""
    train(CONFIGURE + RECORD, receiver.url)
    assert ALL == headers(sent(receiver))
    of_monitel = {point.metric for point in receiver.all_points() if point.scope == "monitel"}
    own = {"loss.count", "loss.mean", "accuracy", "samples", "training.step", "batch.wait.time"}
    assert own | {"monitel.queue.size", "monitel.spool.size"} <= of_monitel


def test_each_request_on_disk_has_one_scope_of_monitel(train: Run, tmp_path: Path) -> None:
    """A process without endpoint writes the same resources and scopes."""
    train(CONFIGURE + RECORD, "offline")
    assert ALL == headers(on_disk(tmp_path / "spool"))


def test_each_request_of_raw_items_has_one_scope_of_monitel(train: Run, tmp_path: Path) -> None:
    """Items that were written to disk without encoding have the same resources and scopes when they are replayed."""
    train(CONFIGURE + HOLD_ENCODER + RECORD, "offline")
    (folder,) = folders(tmp_path / "spool")
    assert [] != list(folder.glob("*.raw"))
    instruments = {("metrics", "mine", THEIRS), ("metrics", "other", "")}  # the SDK is not asked for their values
    assert ALL - instruments == headers(on_disk(tmp_path / "spool"))


def test_each_request_after_sigterm_has_one_scope_of_monitel(receiver: Receiver, terminate: Terminate) -> None:
    """The exit by a signal sends the same resources and scopes."""
    terminate(CONFIGURE + RECORD + 'print("ready", flush=True)\nsys.stdin.read()\n', receiver.url)
    assert ALL == headers(sent(receiver))


def test_each_request_of_a_forked_child_has_one_scope_of_monitel(receiver: Receiver, train: Run) -> None:
    """The child has no providers, but the resources and scopes of its items are the same."""
    train(CONFIGURE + FORK, receiver.url)
    assert {(signal, "monitel", SCHEMA_URL) for signal in LEVELS} == headers(sent(receiver))


@pytest.mark.invalid_output("the resource of the application has only a name", "resource.required", "resource.distro")
def test_schema_of_a_given_resource_is_kept(receiver: Receiver, start: Start) -> None:
    """The requests of all signals have it, for items of monitel and of the application."""
    resource = Resource({"service.name": "train"}, THEIRS)
    pipeline = start(resource=resource, spans=True)
    monitel.emit("epoch")
    with monitel.profiler.record_function("forward"):
        pass
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("own"):
        pass
    pipeline.logger_provider.get_logger("mine").emit(body="own")
    assert pipeline.force_flush(60)
    scopes = headers(sent(receiver), THEIRS)
    assert {("metrics", "monitel"), *((each, name) for each in ("logs", "traces") for name in ("monitel", "mine"))} == {
        (signal, name) for signal, name, _ in scopes
    }


@pytest.mark.parametrize("signal", LEVELS)
def test_parts_of_a_request_have_its_resource_and_scopes(train: Run, tmp_path: Path, signal: str) -> None:
    """A request that a backend rejects is split down to single records, each with both schemas."""
    train(CONFIGURE + RECORD, "offline")
    (folder,) = folders(tmp_path / "spool")
    parts: list[tuple[str, Any]] = []
    pending: list[FrozenRequest] = [request for request in load(folder) if request.signal == signal]
    while pending:
        request = pending.pop()
        halves = split(request)
        pending += halves or ()
        if halves is None:
            parts.append((signal, request.message()))
    assert len(parts) > 1
    resources, scopes, _ = LEVELS[signal]
    for _, message in parts:
        (resource,) = getattr(message, resources)
        (scope,) = getattr(resource, scopes)
        given = {"monitel": SCHEMA_URL, "mine": THEIRS, "other": ""}[scope.scope.name]
        assert (SCHEMA_URL, given) == (resource.schema_url, scope.schema_url)
