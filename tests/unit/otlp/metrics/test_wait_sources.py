"""Wait counters of sources, such as torch's, as metric points: starts, totals, and sources that come and go."""

import time
from collections.abc import Iterator

import pytest
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start
from tests.support.producers import wait
from tests.support.receiver import Receiver
from tests.support.series import increase

from monitel import WaitReading, wait_counter
from monitel.testing import ManualClock


@pytest.fixture
def theirs() -> Iterator[dict[str, WaitReading]]:
    readings: dict[str, WaitReading] = {}

    def source() -> dict[str, WaitReading]:
        return dict(readings)

    wait_counter.add_source(source)
    yield readings
    readings.clear()
    wait_counter.remove_source(source)


def test_totals_of_a_source_begin_where_it_says(
    receiver: Receiver, start: Start, theirs: dict[str, WaitReading], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or when the process began. The longest wait since the last export is derived from the totals."""
    began = time.time_ns() - 60 * 10**9
    monkeypatch.setattr(wait_counter, "_began_ns", began)
    theirs.update({"old": WaitReading(3, 7.5, 5.0, 1), "given": WaitReading(1, 0.5, 0.5, 0, began + 10**9)})
    theirs["own"] = WaitReading(100, 100.0, 100.0, 0)
    with ManualClock() as clock:
        wait(clock, "own", 0.0)  # a key of the process takes precedence
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    theirs["old"] = WaitReading(4, 8.5, 5.0, 0)
    assert pipeline.force_flush(DEADLINE)
    assert ({1}, {0.0}) == tuple({*receiver.values(f"own.wait.{name}")} for name in ("count", "time"))
    for key, start_ns in (("old", began), ("given", began + 10**9)):
        (zero,) = receiver.start_points(f"{key}.wait.time")
        assert (start_ns, start_ns) == (zero.time_ns, zero.start_ns)
    assert (8.5, 4) == (increase(receiver, "old.wait.time"), increase(receiver, "old.wait.count"))
    assert (0, [5.0, 1.0]) == (receiver.values("old.wait.active")[-1], receiver.values("old.wait.max"))
