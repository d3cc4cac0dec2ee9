"""The end of an engine: by a signal handler in the middle of a call of the recorder, and without a trace."""

from typing import Any

import pytest
from tests.support.pipelines import Start

from monitel import COUNT, Stat
from monitel.blackbox.record import WINDOW
from monitel.stats.window import decode, key
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


@pytest.mark.parametrize("is_late", [False, True])
def test_window_is_recorded_once_if_a_signal_handler_raises(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """As Ctrl-C does, before the window is in the journal or afterwards."""
    pipeline = start()
    assert pipeline.engine is not None
    box = pipeline.engine.box
    journal, append = box.journals["metrics"], box.journals["metrics"].append

    def interrupted(*arguments: Any) -> int:
        if is_late:
            append(*arguments)
        monkeypatch.setattr(journal, "append", append)
        raise KeyboardInterrupt

    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    monkeypatch.setattr(journal, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stat.flush()
    is_open = (stat._serial, 1) in {each[:2] for each in decode(box.open_windows()[0])}
    assert is_open is not is_late
    pipeline.shutdown()
    assert 1 == pipeline.account()["metrics"].recorded
