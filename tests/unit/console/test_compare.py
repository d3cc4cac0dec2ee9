"""A comparison as text and as JSON: what is compared, what counts as a value, and how it fits on the screen."""

import json
import math
from dataclasses import replace

import pytest
from tests.unit.console.made_processes import START, S

from monitel.console.compare import comparison_as_json, comparison_lines, difference
from monitel.console.runs import Run
from monitel.runs.history import RunTime
from monitel.runs.values import RunValues, Value
from monitel.text import Screen, columns_of, to_json

pytestmark = pytest.mark.usefixtures("utc")


def value(name: str, number: float, unit: str = "", total: str = "", **attributes: str) -> Value:
    return Value(name, tuple(attributes.items()), unit, number, START, total)


def made_run(
    name: str, seconds: dict[str, int], values: RunValues, *, steps: int, outcome: str = "completed", attempts: int = 1
) -> Run:
    activities = {activity: each * S for activity, each in seconds.items()}
    last_ns = START + sum(activities.values())
    run_time = RunTime(name, activities, attempts, last_ns, "completed", steps=steps, last_step=steps - 1)
    return Run(run_time, values=values, outcome=outcome)


FIRST = made_run(
    "run-7",
    {"startup": 20, "step": 150, "data": 30},
    RunValues(
        values=(value("loss.mean", 0.5), value("eval.loss", 0.25, "s", split="val")),
        config={"rate": 0.1, "layers": 4},
        attributes={"training.world_size": 2, "service.name": "train", "process.pid": 1},
    ),
    steps=1000,
)
OTHER = made_run(
    "run-8",
    {"step": 120, "down": 80, "startup": 30},
    RunValues(
        values=(value("loss.mean", 0.75), value("samples", 4800, "{sample}", total="process")),
        config={"rate": 0.2, "layers": 4, "optimizer": "adam"},
        attributes={"training.world_size": 4, "service.name": "train", "process.pid": 2},
    ),
    steps=600,
    outcome="died",
    attempts=2,
)


def changed(run: Run, name: str, **values: object) -> Run:
    return replace(run, time=replace(run.time, run=name), values=replace(run.values, **values))  # type: ignore[arg-type]


def test_two_runs_in_columns() -> None:
    expected = """\
                            run-7                run-8
outcome                     completed            died
started                     2026-01-02 03:04:05  2026-01-02 03:04:05
attempts                    1                    2
duration                    3 min 20 s           3 min 50 s (+15 %)
steps                       1,000                600 (-40 %)
last step                   999                  599 (-40 %)
steps/s                     5.56                 5 (-10 %)
goodput                     75.0 %               52.2 % (-22.8 points)

time
step                        2 min 30 s, 75 %     2 min, 52 % (-20 %)
down                        -                    1 min 20 s, 35 %
startup                     20 s, 10 %           30 s, 13 % (+50 %)
data                        30 s, 15 %           -

configuration that differs
optimizer                   -                    adam
rate                        0.1                  0.2

attributes that differ
training.world_size         2                    4

last values of rank zero
eval.loss{split=val} (s)    0.25                 -
loss.mean                   0.5                  0.75 (+50 %)
samples                     -                    4,800
"""
    lines = comparison_lines([FIRST, OTHER], Screen(columns=79))
    assert expected.splitlines() == lines


@pytest.mark.parametrize(("columns", "runs"), [(20, 5), (40, 2), (79, 3)])
def test_comparison_fits_the_screen(columns: int, runs: int) -> None:
    """No line is wider than the screen, whatever the names are; nothing but text is printed."""
    odd = changed(
        FIRST,
        "日本語の実行" * 5,
        values=(Value("x" * 100, (("\x1b[2J", "\n"),), "", math.nan, 0), value("y", -math.inf)),
        config={"rate\x07": "/very/long/path" * 10, "layers": 5},
    )
    compared = [FIRST, odd, OTHER, changed(FIRST, "\x1b]0;title\x07"), changed(FIRST, "e")][:runs]
    lines = comparison_lines(compared, Screen(columns, columns=columns))
    assert max(map(columns_of, lines)) <= columns
    assert all(line.isprintable() for line in lines)
    assert len(lines) > 20
    assert "x" * 50 in "".join(map(str.strip, lines))  # names that begin alike do not look the same


def test_run_that_does_not_fit_the_screen_is_missed() -> None:
    """A column for each run, or a sentence about those that are left out; in a file there is room for all."""
    runs = [changed(FIRST, f"run-{number}") for number in range(16)]
    for number, columns, fits in ((3, 60, False), (3, 120, True), (16, Screen().columns, True)):
        first, *others = comparison_lines(runs[:number], Screen(columns=columns))
        assert fits == ([each.time.run for each in runs[:number]] == first.split())
        assert fits == ("no room for run-2: " not in " ".join(others))


def test_settings_that_are_not_known_are_not_called_the_same() -> None:
    """If a run has not stored everything, only its stored settings are known to be the same; masked ones are not."""
    lines = comparison_lines([FIRST, changed(FIRST, "run-8", left_out=2)], Screen())
    assert "no stored setting of the configuration differs" in lines
    assert "run-8: there was no room for 2 of its values, settings and attributes" in lines
    masked = {"rate": 0.1, "token": "***", "data.url": "https://***@host"}
    lines = comparison_lines([changed(FIRST, name, config=masked) for name in "ab"], Screen())
    assert "2 settings are masked, and may differ" in lines


def test_differences_have_a_meaning_or_are_empty() -> None:
    """From zero, to the same value, and of numbers that are not finite there is no difference in percent."""
    assert {""} == {difference(*pair) for pair in ((1, 0), (1, 1), (math.nan, 1), (1, math.inf), (None, 1))}
    pairs = ((1.5, 1), (-0.5, 1), (1.003, 1), (0.99999, 1), (1000, 1), (1, -1))
    assert ["+50 %", "-150 %", "+0.3 %", "-0.0 %", "+99,900 %", "+200 %"] == [difference(*pair) for pair in pairs]


def test_json_has_everything() -> None:
    """Times in UTC, durations in seconds, null for what is not known, and no other numbers than JSON's."""
    nan = changed(FIRST, "run-9\x7f", values=(value("loss", math.nan, split="val"),), left_out=2)
    text = to_json(comparison_as_json([FIRST, OTHER, replace(nan, time=replace(nan.time, steps=0))], START))
    assert all(each.isprintable() and each.isascii() for each in text.replace("\n", ""))
    found = json.loads(text)
    first, other, last = found["runs"]
    assert ("2026-01-02T03:04:05.000000Z", 200.0) == (found["time"], first["duration_seconds"])
    expected = {"name": "loss", "attributes": {"split": "val"}, "unit": "", "value": "NaN", "total": False}
    assert [expected] == last["values"]
    assert (None, 2, "died", True) == (last["steps"], last["left_out"], other["state"], other["values"][1]["total"])
    assert {"rate": [0.1, 0.2, 0.1], "optimizer": [None, "adam", None]} == found["config_differs"]
    assert {"training.world_size": [2, 4, 2]} == found["attributes_differ"]
