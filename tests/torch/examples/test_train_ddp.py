"""The example of late ranks: its delays are where the command line puts them, and wrong ones are explained."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
sys.path.insert(0, str(EXAMPLES))  # the examples are scripts, not a package

train_ddp: Any = import_module("train_ddp")
PAUSES, Late = train_ddp.PAUSES, train_ddp.Late

FORM = "expected STAGE:RANK:DELAY, e.g. data:2:30ms or data:2:30ms/10, got"


@pytest.mark.parametrize(
    ("text", "late", "words"),
    [
        ("data:2:30ms", Late("data", 2, 0.03), "rank 2 is late in data by 30 ms in every step"),
        ("forward:0:1.5ms", Late("forward", 0, 0.0015), "rank 0 is late in forward by 1.5 ms in every step"),
        (
            "backward:11:0.2s/10",
            Late("backward", 11, 0.2, 10),
            "rank 11 is late in backward by 200 ms in one step of 10",
        ),
        ("other:3:60s/1", Late("other", 3, 60.0), "rank 3 is late in other by 60000 ms in every step"),
    ],
)
def test_delays_are_read(text: str, late: Any, words: str) -> None:
    """A delay has a stage, a rank, a time with its unit, and an interval."""
    assert late == train_ddp.delay(text)
    assert words == str(late)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--late", "data"), f"argument --late: {FORM} 'data'"),
        (("--late", "data:2:30"), f"argument --late: {FORM} 'data:2:30'"),
        (("--late", "data:-1:30ms"), f"argument --late: {FORM} 'data:-1:30ms'"),
        (("--late", "data:1:-30ms"), f"argument --late: {FORM} 'data:1:-30ms'"),
        (("--late", "data:1:nanms"), f"argument --late: {FORM} 'data:1:nanms'"),
        (("--late", "data:1:30ms/0"), f"argument --late: {FORM} 'data:1:30ms/0'"),
        (("--late", "data:1:30ms\n"), f"argument --late: {FORM} 'data:1:30ms\\n'"),
        (("--late", "data:\u0661:30ms"), f"argument --late: {FORM} 'data:\u0661:30ms'"),
        (("--late", "loss:1:30ms"), f"argument --late: expected a stage of {', '.join(PAUSES)}, got 'loss'"),
        (("--late", "sync:1:30ms"), f"argument --late: expected a stage of {', '.join(PAUSES)}, got 'sync'"),
        (("--late", "data:1:0ms"), "argument --late: expected a delay above 0 and at most 60 s, got 0ms"),
        (("--late", "data:1:60001ms"), "argument --late: expected a delay above 0 and at most 60 s, got 60001ms"),
        (("--late", "data:4:1ms"), "argument --late: there is no rank 4: the ranks are 0 to 3"),
        (("--steps", "0"), "argument --steps: expected a number of steps, at least 1, got '0'"),
        (("--steps", "1e3"), "argument --steps: expected a number of steps, at least 1, got '1e3'"),
    ],
)
def test_wrong_arguments_are_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """The error names the argument, the value, and the allowed values."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(train_ddp, "WORLD_SIZE", 4)
    with pytest.raises(SystemExit):
        train_ddp.parse_arguments(arguments)
    assert capsys.readouterr().err.endswith(f"error: {message}\n")
