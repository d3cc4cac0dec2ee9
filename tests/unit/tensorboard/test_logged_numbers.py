"""log() and config(): scalars at exact steps, a table and hyperparameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from tensorboard.plugins.hparams import metadata  # type: ignore[import-untyped]

import monitel
from monitel_tensorboard import install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    import pytest

    Read: TypeAlias = Callable[[Path], dict[str, list[tuple[int, float | str]]]]


def test_each_number_is_a_scalar_at_its_step(tmp_path: Path, read: Read) -> None:
    """Steps may go back, and each call has a point."""
    with install(tmp_path) as installed:
        for step, loss in ((10, 0.5), (20, 0.25), (15, 0.75), (15, 1.0)):
            monitel.log({"loss": loss, "val": {"accuracy": 1 - loss}}, step=step)
    assert 0 == installed.writer.dropped
    assert {
        "loss": [(10, 0.5), (20, 0.25), (15, 0.75), (15, 1.0)],
        "val.accuracy": [(10, 0.5), (20, 0.75), (15, 0.25), (15, 0.0)],
    } == read(tmp_path)


def test_step_is_that_of_set_step_or_counted(tmp_path: Path, read: Read) -> None:
    """Without any step the points of a tag are numbered."""
    with install(tmp_path):
        monitel.log({"loss": 0.5})
        monitel.log({"loss": 0.25})
        monitel.set_step(7)
        monitel.log({"loss": 1.0})
        monitel.set_step(3)
        monitel.log({"loss": 2.0})
    assert [(0, 0.5), (1, 0.25), (7, 1.0), (3, 2.0)] == read(tmp_path)["loss"]


def test_attributes_are_in_the_tag(tmp_path: Path, read: Read) -> None:
    """The tag is as for Stats."""
    with install(tmp_path):
        monitel.log({"loss": 0.5}, step=1, split="val", ema=True)
    assert {"loss{ema=true,split=val}": [(1, 0.5)]} == read(tmp_path)


def test_configuration_is_a_table(tmp_path: Path) -> None:
    """Markdown, with a row for each value; lists and None as JSON."""
    with install(tmp_path) as installed:
        monitel.config({"lr": 0.5, "model": {"layers": [1, None], "nothing": None, "empty": {}}, "text": "a|b\nc"})
    assert 0 == installed.writer.dropped
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    (table,) = reader.Tensors("run.config")
    assert (
        "| name | value |\n|---|---|\n| lr | 0.5 |\n| model.layers | [1, null] |\n| model.nothing | null |\n"
        "| model.empty | {} |\n| text | a\\|b c |"
    ) == table.tensor_proto.string_val[0].decode()


def test_configuration_is_on_the_tab_of_hyperparameters(tmp_path: Path) -> None:
    """The values have the types that the tab can filter and sort by."""
    with install(tmp_path):
        monitel.config({"lr": 0.5, "model": {"width": 8, "name": "caf\u00e9"}, "amp": True, "nan": math.nan})
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    content = reader.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams: Any = metadata.parse_session_start_info_plugin_data(content).hparams
    found = {name: getattr(value, value.WhichOneof("kind")) for name, value in hparams.items()}
    assert {"lr": 0.5, "model.width": 8.0, "model.name": "caf\u00e9", "amp": True, "nan": "NaN"} == found


def test_points_of_a_configuration_that_is_dropped_are_counted(tmp_path: Path) -> None:
    """A table and hyperparameters are two points."""
    with install(tmp_path) as installed:
        installed.writer.close()
        monitel.config({"lr": 0.5})
    assert 2 == installed.writer.dropped


def test_run_events_are_texts_and_scalars(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """As other events."""
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")
    with install(tmp_path):
        pass
    found = read(tmp_path)
    assert [(0, "completed")] == found["run.ended/run.status"]
    assert {"run.started/run.command", "run.started/host.name", "run.ended/run.duration"} <= set(found)
