"""Names and units of every metric that monitel defines, by the rules of the semantic conventions."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import Answer
from tests.support.paths import ROOT
from tests.unit.otlp.system.fake_nvml import FakeNvml

import monitel
from monitel import COUNT, HISTOGRAM, MAX, MEAN, MIN, STDDEV, SUM, VALUE
from monitel.training_counters import training_counter
from monitel_otel import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

PAGE = (ROOT / "docs/reference/metrics-and-events.md").read_text("utf-8")
THEIRS = ("process.", "system.memory.", "system.disk.", "system.network.")  # of OpenTelemetry's instrumentor

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z0-9]+(_[a-z0-9]+)*)+")
_UNIT_IN_NAME = re.compile(
    r"(?:[._]|^)(?:total|ratio|percent|s|ms|us|ns|seconds?|milliseconds?|bytes?|watts?|celsius)(?:[._]|$)"
)
_ANNOTATION = re.compile(r"\{[a-z]+\}")
_UNITS = {"s", "By", "W", "Cel", "1"}
_SECONDS = {"duration", "time"}
_RATIOS = {"utilization", "mfu", "goodput"}
_RATES = {"rate"}  # amounts per second of wall time, logged as numbers without unit


def violations(name: str, kind: str, unit: str) -> list[str]:
    """Return the rules that a metric breaks; its kind is gauge, counter, up-down counter or histogram."""
    *_, last = name.split(".")
    is_ratio = unit == "1"
    rules = {
        "lower case words, separated by dots": _NAME.fullmatch(name),
        "no unit and no total in the name": not _UNIT_IN_NAME.search(name),
        "a unit of the conventions, or one thing in braces": unit in _UNITS or _ANNOTATION.fullmatch(unit),
        "the thing in braces is singular": not unit.endswith("s}") or unit.endswith("ss}"),
        "durations in seconds": last not in _SECONDS or unit == "s",
        "ratios have the unit 1": is_ratio == (last in _RATIOS),
        "ratios are gauges": not is_ratio or kind == "gauge",
        "a plural only for things that are counted": not last.endswith("s") or unit == f"{{{last[:-1]}}}",
        "a sum counts things, time or bytes": kind == "gauge" or unit in {"s", "By"} or _ANNOTATION.fullmatch(unit),
    }
    if last in _RATES and not unit:
        rules.pop("a unit of the conventions, or one thing in braces")
    return [rule for rule, kept in rules.items() if not kept]


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield name, kind and unit of each metric in the tables of monitel's metrics."""
    text = PAGE.split("\n## Time and goodput")[1].split("\n## Resource attributes")[0]
    for table in re.split(r"\n\n+", text.strip()):
        header, *rows = table.splitlines()
        of_stats = header.startswith("| Stat | unit")
        if not of_stats and not header.startswith("| name | kind, unit"):
            continue
        for row in rows[1:]:
            first, second, *_ = (cell.strip() for cell in row.strip("|").split("|"))
            kind = "histogram" if of_stats else re.split(r"[,:;]", second)[0].replace("sum", "up-down counter")
            unit = "".join(re.findall(r"`([^`]*)`", second)[:1])
            yield from ((name, kind, unit) for name in re.findall(r"`([^`]+)`", first))


DOCUMENTED = [each for each in documented() if not each[0].startswith(THEIRS)]


@pytest.mark.parametrize(("name", "kind", "unit"), DOCUMENTED, ids=[each[0] for each in DOCUMENTED])
def test_documented_metric_follows_the_conventions(name: str, kind: str, unit: str) -> None:
    """Each metric of the reference has a name and a unit by the rules of the semantic conventions."""
    assert [] == violations(name, kind, unit)


OWN = [name for name, *_ in DOCUMENTED if name.startswith(("monitel.", "training.goodput"))]


@pytest.mark.parametrize("name", [*OWN, "training.step", "training.time"])
def test_metric_of_monitel_keeps_its_name(name: str) -> None:
    """A number of the application with the same name is sent under another one."""
    assert f"{name}.number" == NAMES.of_number(name)


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("training.step_total", "counter", "{step}"),
        ("training.total", "counter", "{step}"),
        ("training.time_ms", "gauge", "s"),
        ("training.duration", "gauge", ""),
        ("training.duration", "gauge", "ms"),
        ("hw.gpu.utilization", "gauge", "%"),
        ("hw.gpu.utilization", "gauge", ""),
        ("training.samples", "counter", "{samples}"),
        ("training.samples", "counter", "1"),
        ("monitel.windows", "gauge", "{value}"),
        ("Training.Loss", "gauge", "1"),
        ("training.share", "counter", "1"),
    ],
)
def test_rules_find_a_wrong_metric(name: str, kind: str, unit: str) -> None:
    """Each of these breaks a rule."""
    assert [] != violations(name, kind, unit)


def test_page_has_the_metrics_of_the_sources() -> None:
    """Each name of a metric of training in the code is on the page, and the other way round."""
    sources = [*(ROOT / "src/monitel").rglob("*.py"), ROOT / "exporters/otlp/src/monitel_otlp/metrics/readings.py"]
    named = {name for path in sources for name in re.findall(r'"(training\.[a-z_.]+)"', path.read_text("utf-8"))}
    ranges = {"training.data", "training.forward", "training.backward", "training.optimizer"}
    private = {"training.flops"}  # a total for training.mfu
    attributes = {"training.activity", "training.group", "training.rank", "training.stage", "training.step"}
    adapters = {"training.evaluation.duration", "training.checkpoint.duration"}  # in the text below the tables
    rates = {"training.samples.rate", "training.tokens.rate"}  # built from the counters' names
    on_page = {name for name, *_ in documented() if name.startswith("training.")}
    assert named - ranges - private - attributes - adapters == on_page - rates
    assert all(f"`{name}`" in PAGE for name in adapters)


def test_sent_metrics_have_the_documented_units(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, clock: monitel.testing.ManualClock
) -> None:
    """Metrics of every kind in the scope of monitel follow the rules, and are documented with their kind and unit."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("MONITEL_BLACK_BOX_SIZE", "65536")
    receiver.rule(lambda request: Answer(400) if request.signal == "logs" else None)
    pipeline = start(system=True, distributions="both")
    stat = monitel.Stat("training.step.duration", [COUNT, SUM, MEAN, MIN, MAX, VALUE, STDDEV, HISTOGRAM], 1.0, unit="s")
    monitel.set_step(3)
    stat.add(0.5)
    clock.advance(1)
    for name in ("steps", "steps.skipped", "samples", "tokens", "recompilations", "recompilation.time"):
        training_counter(f"training.{name}").add(1)
    for number in range(100):
        monitel.log({"training.mfu": number / 100, "name": "text"})
    with monitel.WaitCounter("data.loading").guard():
        monitel.emit("epoch")
    monitel.emit("large", text="x" * 100_000)  # for which the black box has no room
    for _ in range(2):
        pipeline.force_flush(10)  # False: the events were refused
    found = {
        (point.metric, {True: "counter", False: "up-down counter", None: point.kind}[point.monotonic], point.unit)
        for point in receiver.all_points()
        if point.scope == "monitel"
    }
    of_stat = {f"training.step.duration.{suffix}" for suffix in ("mean", "min", "max", "value", "stddev", "p50", "p99")}
    assert {(name, "gauge", "s") for name in of_stat} <= found
    assert ("training.step.duration.count", "counter", "{sample}") in found
    sent = {each for each in found if not each[0].startswith(("training.step.duration.", "data.loading."))}
    expected = [*DOCUMENTED, ("training.step", "gauge", "{step}")]
    assert sent <= set(expected)
    missing = {name for name, *_ in expected} - {name for name, *_ in sent}
    of_torch = {name for name, *_ in expected if name.startswith("training.") and name.endswith((".duration", ".rate"))}
    assert {"monitel.windows", "training.tensors.lost"} == missing - of_torch
    for name, kind, unit in found:
        assert [] == violations(name, kind, unit)
