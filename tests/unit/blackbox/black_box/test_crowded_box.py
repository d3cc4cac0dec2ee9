"""A box with too little room: cuts go first, requests go to the spool, and nothing is lost or sent twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE, Answer
from tests.unit.blackbox.black_box.test_recording import boxes, contents

import monitel

if TYPE_CHECKING:
    import pytest
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver


def test_box_stays_in_a_long_outage(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand large events in an outage fill the spool, and not the half of the box that is for cuts."""
    monkeypatch.setenv("MONITEL_BLACK_BOX_SIZE", str(256 << 10))
    away = [True]
    receiver.rule(lambda _: Answer(503) if away else None)
    pipeline = start(export_interval=0.05)
    assert pipeline.engine is not None
    stats = [monitel.Stat(f"stat.{number}", [monitel.COUNT], 3600.0) for number in range(100)]
    for number in range(1000):
        monitel.emit("event", number=number, text="x" * 1000)
        stats[number % 100].add(1.0)
        if number % 50 == 49:  # an encoder that gets no CPU time would leave more to a cut than there is room for
            assert pipeline.engine.encoder.encode_all(time.monotonic() + DEADLINE)
    wait_until(lambda: pipeline.account()["logs"].on_disk > 800, "the events in the spool")
    wait_until(lambda: len(contents().windows) == 100, "a cut with all windows")
    assert boxes()
    assert [] == [record.message for record in caplog.records if "switched off" in record.message]
    away.clear()
    wait_until(lambda: pipeline.force_flush(DEADLINE), "everything at the backend")
    found = [record.attributes["number"] for record in receiver.records("event")]
    assert list(range(1000)) == sorted(found)
