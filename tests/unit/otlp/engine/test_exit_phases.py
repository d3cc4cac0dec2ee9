"""Exceptions in a phase of the exit: later phases still run, and each item is on disk or counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.pipelines import busy_encoder
from tests.support.producers import emit_items

import monitel
from monitel_otlp.engine import exit_phases

if TYPE_CHECKING:
    from tests.support.pipelines import Start


@pytest.mark.parametrize("kind", ["raw_events", "raw_ranges", "raw_records", "raw_spans", "raw_windows"])
def test_exception_in_one_raw_form_loses_only_its_items(
    *, start: Start, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Items that cannot be written are dropped with the reason ``encoding``; all other kinds are written to disk."""
    pipeline = start(endpoint=None, spans=True, logging_level="INFO")
    assert pipeline.engine is not None

    def broken(*_arguments: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(exit_phases, kind, broken)
    monkeypatch.setattr(pipeline.engine.encoder, "finish", lambda *_arguments: False)
    with busy_encoder(pipeline):
        handed_over = emit_items(pipeline, 120, 3)
        assert not pipeline.shutdown()
    accounts = pipeline.account()
    lost = {signal: dict(each.dropped) for signal, each in accounts.items() if each.dropped}
    assert 1 == len(lost)
    assert [{"encoding"}] == [set(reasons) for reasons in lost.values()]
    assert handed_over.total() == sum(each.on_disk + each.lost for each in accounts.values())
    assert 3 == sum(each.on_disk > 0 for each in accounts.values()) + (kind == "raw_windows")


@pytest.mark.parametrize("phase", ["encoder.finish", "_prepare_raw", "delivery.finish"])
def test_exception_in_a_phase_of_the_exit_does_not_skip_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Requests in memory are written to disk even if an earlier phase raises."""
    pipeline = start(endpoint="http://127.0.0.1:9")
    assert pipeline.engine is not None
    for _ in range(10):
        monitel.emit("event")
    assert not pipeline.force_flush(0.3)

    def broken(*_arguments: Any) -> Any:
        raise RuntimeError("injected")

    owners = {"encoder": pipeline.engine.encoder, "delivery": pipeline.engine.delivery, "": exit_phases}
    owner, _, name = phase.rpartition(".")
    monkeypatch.setattr(owners[owner], name, broken)
    assert not pipeline.shutdown()
    assert 10 == pipeline.account()["logs"].on_disk
