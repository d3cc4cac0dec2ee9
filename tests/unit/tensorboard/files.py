"""Reading of event files with TensorBoard's own reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pathlib import Path

Points = dict[str, list[tuple[int, "float | str"]]]
LEDGER = ("training.time/", "training.goodput")  # tags whose values are times


def reader_of(folder: Path) -> Any:
    """Return TensorBoard's reader of a run, which has read everything."""
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0}).Reload()


def read(folder: Path, *, ledger: bool = False) -> Points:
    """Return the steps and values of scalars and texts by tag: those of the ledger, or all others."""
    reader = reader_of(folder)
    found: Points = {tag: [(each.step, each.value) for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    for tag in reader.Tags()["tensors"]:
        found[tag] = [(each.step, each.tensor_proto.string_val[0].decode()) for each in reader.Tensors(tag)]
    return {tag: points for tag, points in found.items() if ledger == tag.startswith(LEDGER)}
