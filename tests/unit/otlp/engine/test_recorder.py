"""Windows that a signal handler takes at the end of a process, in the middle of a call of the recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel import COUNT, Stat
from monitel.blackbox.record import WINDOW
from monitel.window_bytes import key

if TYPE_CHECKING:
    import pytest
    from tests.support.pipelines import Start

    from monitel.testing import ManualClock


def test_window_is_recorded_once_if_a_signal_interrupts_it(
    start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shutdown of the handler begins when the window is in the journal, and is still open."""
    pipeline = start()
    assert pipeline.engine is not None
    recorder, journal = pipeline.engine.recorder, pipeline.engine.box.journals["metrics"]
    append = journal.append

    def interrupted(*arguments: Any) -> int:
        last = append(*arguments)
        monkeypatch.setattr(journal, "append", append)
        recorder.take_rest()
        return last

    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    monkeypatch.setattr(journal, "append", interrupted)
    clock.advance(60)
    stat.add(1)
    keys = [key(item.value[1]) for item in journal.read() if item.kind == WINDOW]
    assert sorted(set(keys)) == sorted(keys)
