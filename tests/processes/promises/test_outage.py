"""A job beside a dead backend: it ends nevertheless, what is left is on disk exactly, and is delivered once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.patience import IN_TIME
from tests.support import hostile
from tests.support.checks import NEEDS_GRPC
from tests.support.commands import command
from tests.support.hostile import Peer, refusing_url
from tests.support.receiver import Receiver
from tests.support.scripts import PRINT_TIME, Run
from tests.support.spools import cat, last_line

#: An attempt could last an hour: only the exit itself is short.
PATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
EVENTS = [f"event {number}" for number in range(100)]
RANGES = [f"range {number}" for number in range(100)]
JOB = """\
from monitel.profiler import record_function
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05, spans=True)
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT, SUM, MEAN], 60.0)
for number in range(100):
    monitel.set_step(number)
    loss.add(number)
    if number < 99:
        clock.advance(60)  # the last window is open at the exit
    with record_function(f"range {number}"):
        monitel.emit(f"event {number}", number=number)
clock.advance(1)
"""


@pytest.fixture
def dead(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The variables for a backend that is down, silent, or too slow by hours; others: tests/unit/promises."""
    kind, _, protocol = request.param.partition(" over ")
    variables = {**PATIENT, "OTEL_EXPORTER_OTLP_PROTOCOL": {"gRPC": "grpc", "": "http/protobuf"}[protocol]}
    with Peer(hostile.drips_headers if kind == "drips" else hostile.never_reads) as peer:
        yield {**variables, "URL": refusing_url() if kind == "down" else peer.url}


OVER_GRPC = [pytest.param(f"{each} over gRPC", marks=NEEDS_GRPC) for each in ("down", "silent")]


@pytest.mark.timed
@pytest.mark.parametrize("dead", ["down", "silent", "drips", *OVER_GRPC], indirect=True)
def test_job_beside_a_dead_backend_leaves_everything_on_disk_for_one_replay(
    receiver: Receiver, train: Run, dead: dict[str, str]
) -> None:
    """The last line has the number of items, the folder and the command; a second replay has nothing to send."""
    ended = train(JOB + PRINT_TIME, dead.pop("URL"), env=dead)
    assert ended.exit_s < IN_TIME
    (folder,) = (each for each in Path("spool").iterdir() if each.name != "ledgers")
    line = last_line(ended.stderr)
    assert (0, 0, None, 300) == (line.windows, line.events, line.dropped, line.spooled)
    printed = f"monitel replay {folder.absolute()} --endpoint http://HOST:4318"  # it is in the program alone
    assert (str(folder.absolute()), printed) == (line.folder, line.command)
    left = cat(folder)
    assert EVENTS == left.names
    expected = [(number, number) for number in range(100)]
    assert expected == [(each.attributes["number"], each.attributes["training.step"]) for each in left.records]
    assert ([*range(1, 101)], [*range(100)]) == (left.values("loss.count"), left.values("loss.mean"))
    assert RANGES == [each.name for each in left.spans]
    replayed = command("replay", folder, "--endpoint", receiver.url)
    assert (0, "delivered 300 items from 1 spool") == (replayed.status, replayed.stdout.splitlines()[-1])
    assert EVENTS == receiver.record_names()
    assert ([*range(1, 101)], 4950) == (receiver.values("loss.count"), receiver.values("loss.sum")[-1])
    assert RANGES == [each.name for each in receiver.spans()]
    assert not folder.exists()
    sent = len(receiver.requests)
    assert 0 == command("replay", "spool", "--endpoint", receiver.url).status
    assert sent == len(receiver.requests)
