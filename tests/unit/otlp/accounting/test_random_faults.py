"""Exceptions in a transport, the disk, the box or an encoder: public calls do not raise, and items are counted once."""

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.support.pipelines import Start, check_accounts
from tests.support.producers import answer_at_random, checked_continuously, emit_items, make_small, run_together
from tests.support.receiver import Receiver

from monitel.blackbox import disk, journal
from monitel.blackbox.box import Box
from monitel.blackbox.folder import Folder, FolderError
from monitel_otlp.messages.log_records import LogsEncoder
from monitel_otlp.metrics.windows import Draft, WindowsEncoder
from monitel_otlp.traces.mapping import RangeMapping
from monitel_otlp.transport.http import HttpTransport

ERRORS: list[Any] = [partial(OSError, 5), FolderError, RuntimeError, MemoryError]
PLACES: dict[str, list[tuple[Any, str]]] = {
    "transport": [(HttpTransport, "send")],
    "disk": [(disk, "write_at"), (Folder, "open_file"), (Folder, "read"), (Folder, "unlink"), (Box, "_open_disk")],
    "box": [(Box, "_write_totals"), (Box, "_write_state"), (Box, "note_position"), (journal, "map_file")],
    "encoders": [(LogsEncoder, "_write_record"), (WindowsEncoder, "_write_row"), (Draft, "rows")],
    "recorder": [(RangeMapping, "encode"), (Box, "_read")],
}


@pytest.mark.parametrize("part", PLACES)
def test_exceptions_in_any_part_lose_nothing_uncounted(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """A third of its calls fail, with any exception, beside a backend that is there every other time."""
    make_small(monkeypatch)
    choose = random.Random(part)
    pipeline = start(export_interval=0.02, spans=True, logging_level="INFO")
    answer_at_random(receiver, len(part), ["503", "200"])
    recorded: list[Counter[str]] = []

    def faulty(original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if choose.random() < 0.3:
                raise choose.choice(ERRORS)("injected")
            return original(*arguments, **options)

        return call

    for owner, name in PLACES[part]:
        monkeypatch.setattr(owner, name, faulty(getattr(owner, name)))
    with checked_continuously(pipeline):
        run_together(*(lambda seed=seed: recorded.append(emit_items(240, seed)) for seed in range(4)))
        pipeline.force_flush(0.3)
    emit_items(20, 4)  # for the shutdown
    pipeline.shutdown()
    monkeypatch.undo()
    check_accounts(pipeline)
    accounts = pipeline.account()
    expected = sum(recorded, Counter())
    assert {} == {signal: each for signal, each in accounts.items() if each.recorded < expected[signal]}
    ids = {(each.name, each.body, each.attributes.get("id")) for each in receiver.records()}
    assert accounts["logs"].delivered <= len(ids)
    assert accounts["traces"].delivered <= len({each.span_id for each in receiver.spans()})
    assert [] == [each.getMessage() for each in caplog.records if "bug in monitel" in each.getMessage()]
    caplog.clear()  # the tracebacks of its records keep Stats
