"""The number in the column LOSS: exact names before others, and one series of each name."""

from __future__ import annotations

import marshal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.unit.blackbox.collection.dead_boxes import cut_of, make_box, write_file

from monitel_otlp.black_box.event_journal import _record
from monitel_otlp.boxes.layout import JOURNALS
from monitel_otlp.top.box_watch import LOGGED, BoxWatch
from monitel_otlp.top.numbers import Numbers, Value

if TYPE_CHECKING:
    from pathlib import Path


def series_of(*names: str) -> list[Any]:
    """Return series with these names, as in a cut."""
    return [SimpleNamespace(plain=("", name)) for name in names]


def window_of(series: int, last: float) -> Any:
    """Return a window of a series with this last sample."""
    return SimpleNamespace(stat=SimpleNamespace(series=series), snapshot=SimpleNamespace(last=last))


def test_exact_name_comes_before_one_that_ends_with_it() -> None:
    """A logged loss before a Stat such as ``aux_loss``; a Stat before a logged number of the same name."""
    numbers = Numbers()
    series = series_of("aux_loss", "rate")
    numbers.add_stats(series)
    numbers.see([window_of(0, 0.5), window_of(1, 9.0)], series)
    assert Value("aux_loss", 0.5) == numbers.value(None)
    numbers.log({"val_loss": 2.0, "loss": 3.0, "rate": 1.0})
    assert Value("loss", 3.0) == numbers.value(None)
    assert Value("val_loss", 2.0) == numbers.value("val_loss")
    assert Value("rate", 9.0) == numbers.value("rate")
    assert Value("missing", None) == numbers.value("missing")


def test_first_series_of_a_name_has_the_value() -> None:
    """``loss`` with two attributes is two series; a window of the other one does not replace the value."""
    numbers = Numbers()
    series = series_of("loss", "loss")
    numbers.add_stats(series)
    numbers.see([window_of(1, 7.0)], series)
    assert 7.0 == numbers.value(None).value
    numbers.see([window_of(0, 0.5), window_of(1, 8.0)], series)
    assert 0.5 == numbers.value(None).value
    numbers.see([window_of(1, 9.0)], series)
    assert 0.5 == numbers.value(None).value
    numbers.see([window_of(0, 0.4)], series)
    assert 0.4 == numbers.value(None).value


def test_events_of_both_files_of_the_journal_are_seen(tmp_path: Path) -> None:
    """The second file has the earlier events once the first one has been emptied, and is in use again."""
    box = make_box(tmp_path / "boxes", tmp_path / "spool", cut=cut_of())

    def event(number: int, name: str, body: dict[str, float]) -> bytes:
        return _record(number, number, marshal.dumps((number, number, 9, name, body, {}, 0, b"", b"", 0), 4))

    for file, number, record in (
        (JOURNALS[0], 5, event(5, "epoch", {})),
        (JOURNALS[1], 4, event(4, LOGGED, {"loss": 0.25})),
    ):
        write_file(box / file, number.to_bytes(8, "little") + record)
    watch = BoxWatch(box)
    try:
        watch.refresh()
    finally:
        watch.close()
    assert watch.event is not None
    assert ("epoch", 0.25) == (watch.event.name, watch.numbers.value(None).value)
