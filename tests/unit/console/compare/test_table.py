"""A comparison as text and as JSON: what is compared, what counts as a value, and how it fits on the screen."""

from __future__ import annotations

import json
import math
import time

import pytest
from tests.unit.console.compare.made_runs import SECOND, START, made_run

from monitel.console.compare.as_json import comparison_as_json
from monitel.console.compare.rows import difference, number, points
from monitel.console.compare.run import Number, internal_metrics
from monitel.console.compare.table import comparison_lines
from monitel.console.text import Screen, columns_of


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local time is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


OTHER = made_run(
    "run-8",
    outcome="died",
    attempts=2,
    activities={"step": 120 * SECOND, "down": 80 * SECOND, "startup": 30 * SECOND},
    goodput=0.5,
    steps=600,
    last_step=599,
    numbers={("loss.mean", ()): Number(0.75), ("samples", ()): Number(4800, "{sample}", True)},
    config={"rate": 0.2, "layers": 4, "optimizer": "adam"},
    attributes={"training.world_size": 4, "service.name": "train", "process.pid": 2},
)


def test_two_runs_in_columns() -> None:
    """Summary, time, last values and the settings that differ; percentages are differences from the first run."""
    expected = """\
                           run-7                run-8
outcome                    completed            died
started                    2026-01-02 03:04:05  2026-01-02 03:04:05
attempts                   1                    2
duration                   3 min 20 s           3 min 50 s (+15 %)
steps                      1,000                600 (-40 %)
last step                  999                  599 (-40 %)
steps/s                    5.556                5 (-10 %)
goodput                    75.0 %               50.0 % (-25.0 points)

time
step                       2 min 30 s, 75 %     2 min, 52 % (-20 %)
down                       -                    1 min 20 s, 35 %
startup                    20 s, 10 %           30 s, 13 % (+50 %)
data                       30 s, 15 %           -

last values of rank zero
eval.loss{split=val} (s)   0.25                 -
loss.mean                  0.5                  0.75 (+50 %)
samples                    -                    4,800

configuration that differs
optimizer                  -                    adam
rate                       0.1                  0.2

attributes that differ
training.world_size        2                    4

1 other setting of the configuration is the same
run-7: from the ledger
run-8: from the ledger"""
    lines = comparison_lines([made_run(), OTHER], Screen())
    assert [line.split() for line in expected.splitlines()] == [line.split() for line in lines]


@pytest.mark.parametrize(("width", "runs"), [(20, 5), (40, 2), (79, 3)])
def test_comparison_fits_the_screen(width: int, runs: int) -> None:
    """No line is wider than the screen, whatever the names are; nothing but text is printed."""
    odd = made_run(
        "日本語の実行" * 5,
        numbers={("x" * 100, (("\x1b[2J", "\n"),)): Number(math.nan), ("y", ()): Number(-math.inf)},
        config={"rate\x07": "/very/long/path" * 10, "layers": 5},
    )
    compared = [made_run(), odd, OTHER, made_run("\x1b]0;title\x07"), made_run("e")][:runs]
    lines = comparison_lines(compared, Screen(width), complete=True)
    assert max(map(columns_of, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert len(lines) > 20


def test_settings_that_were_left_out_are_not_called_the_same() -> None:
    """If a run has not stored everything, only its stored settings are known to be the same."""
    lines = comparison_lines([made_run(), made_run("run-8", left_out=2)], Screen())
    assert "the configuration is the same" not in lines
    assert "the settings that were stored are the same" in lines
    assert any(line.startswith("run-8: 2 values, settings and attributes were not stored") for line in lines)
    runs = json.loads(comparison_as_json([made_run(), made_run("run-8", left_out=2)], [], START))["runs"]
    assert [0, 2] == [each["left_out"] for each in runs]


def test_differences_have_a_meaning_or_are_empty() -> None:
    """From zero, to the same value, and of numbers that are not finite there is no difference in percent."""
    assert ["", "", "", "", ""] == [
        difference(*pair) for pair in ((1, 0), (1, 1), (math.nan, 1), (1, math.inf), (None, 1))
    ]
    assert ["+50 %", "-150 %", "+0.3 %", "-0.0 %", "+99,900 %", "+200 %"] == [
        difference(*pair) for pair in ((1.5, 1), (-0.5, 1), (1.003, 1), (0.99999, 1), (1000, 1), (1, -1))
    ]
    assert ["+10.0 points", "", ""] == [points(0.5, 0.4), points(None, 0.4), points(math.nan, 0.4)]
    assert ["0.333333", "1,234,567", "1.23457e+07", "1e-30", "nan"] == [
        number(each) for each in (1 / 3, 1234567, 12345678.9, 1e-30, math.nan)
    ]


def test_json_has_everything() -> None:
    """All values, times in UTC, durations in seconds, null for what is not known, and no other numbers than JSON's."""
    nan = made_run("run-9\x7f", numbers={("loss", (("split", "val"),)): Number(math.nan)}, steps=None)
    text = comparison_as_json([made_run(), OTHER, nan], ["a problem"], START)
    assert text.isascii()
    assert all(each.isprintable() for each in text.replace("\n", ""))
    found = json.loads(text)
    assert (1, "2026-01-02T03:04:05.000000Z", ["a problem"]) == (found["version"], found["time"], found["problems"])
    first, other, last = found["runs"]
    assert (200.0, 5.556, {"startup": 20, "step": 150, "data": 30}) == (
        first["duration_seconds"],
        round(first["steps_per_second"], 3),
        first["activities"],
    )
    assert {"rate": 0.1, "layers": 4} == first["config"]
    assert [{"name": "loss", "attributes": {"split": "val"}, "unit": "", "value": "NaN", "total": False}] == last[
        "values"
    ]
    assert (None, "died", True) == (last["steps"], other["outcome"], other["values"][1]["total"])
    assert {"rate": [0.1, 0.2, 0.1], "optimizer": [None, "adam", None]} == found["config_differs"]
    assert {"training.world_size": [2, 4, 2]} == found["attributes_differ"]


WAITS = ["data.loading.wait.time", "data.loading.wait.count", "data.loading.wait.active", "data.loading.wait.max"]


def test_only_metrics_of_monitel_are_left_out_of_the_values() -> None:
    """A user's metric is a value, even if its name begins or ends alike."""
    internal = [*WAITS, "training.time", "training.goodput", "monitel.queue.size", "hw.power", "process.cpu.time"]
    values = [
        *("process.reward.mean", "system.prompt.loss", "hw.loss", "queue.wait.seconds", "queue.wait.count"),
        *("training.time.to.loss", "training.goodput.mean", "loss"),
    ]
    assert {*internal} == internal_metrics([*internal, *values])
