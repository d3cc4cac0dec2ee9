"""Counters, waits and the times of activities: through an application's reader, in forked children, and by replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import TEMPORALITY
from tests.support.scripts import CONFIGURE
from tests.support.series import increase

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

TIME, GOODPUT = "training.time", "training.goodput"
WORK = """
for step in range(3):
    with monitel.activity("data"):
        time.sleep(0.01)
    monitel.set_step(step)
"""
ATTACHED = """\
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
exporter = monitel_otlp.MetricExporter(endpoint=sys.argv[1])
provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
set_meter_provider(provider)
own = provider.get_meter("application").create_counter("own")
samples, waiting = monitel.counter("samples"), monitel.WaitCounter("loading")
for amount in (50, 10):
    own.add(1)
    samples.add(amount)
    with waiting.guard(): pass
    provider.force_flush()
samples.add(1)
own.add(1)
provider.shutdown()
"""


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.invalid_output("the resource belongs to the application", "resource.distro")
def test_reader_of_an_application_has_all_totals(receiver: Receiver, train: Run, temporality: str) -> None:
    """At each of its collections, and at its shutdown."""
    train(WORK + ATTACHED, receiver.url, env={TEMPORALITY: temporality})
    times: dict[str, float] = {}
    for point in receiver.points(TIME):
        name = str(point.attributes["training.activity"])
        times[name] = point.value + (times.get(name, 0) if temporality == "delta" else 0)
    assert {"startup", "data", "step"} == {*times}
    assert times["data"] >= 0.03
    assert 2 in receiver.values("training.step")
    assert len(receiver.values(GOODPUT)) >= 3
    waits = receiver.values("loading.wait.count")
    if temporality == "cumulative":
        assert [50, 60, 61] == sorted({*receiver.values("samples")})
        assert (61, 2) == (increase(receiver, "samples"), waits[-1])
    else:
        assert ([50, 10, 1], 2) == (receiver.values("samples"), sum(waits))


@pytest.mark.parametrize("steps", [False, True])
def test_forked_child_has_a_ledger_from_its_first_step_on(receiver: Receiver, train: Run, *, steps: bool) -> None:
    """Activities of other children are not part of the training; the parent's time is not in the child's."""
    child = f"""\
pipeline.force_flush()
if (pid := os.fork()) == 0:
    with monitel.activity("evaluation"): pass
    if {steps}: monitel.set_step(9)
    with monitel.activity("checkpoint.save"): pass
    monitel.emit("child")
    sys.exit()
os.waitpid(pid, 0)
"""
    train(CONFIGURE + WORK + child, receiver.url)
    points = receiver.points(TIME)
    parent, *others = dict.fromkeys(point.resource["process.pid"] for point in points)
    of_child = [point for point in points if point.resource["process.pid"] in others]
    assert "child" in receiver.record_names()
    expected = {"startup", "step", "checkpoint.save", "shutdown"} if steps else set()
    assert expected == {point.attributes["training.activity"] for point in of_child}
    starts = {point.start_ns for point in points if point.resource["process.pid"] == parent}
    assert all(point.start_ns > max(starts) for point in of_child)


def test_replay_has_all_time_of_a_process_without_a_backend(receiver: Receiver, train: Run, run: Run) -> None:
    """The points are sent as they were stored, with the start of the process."""
    ended = train(
        'pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=3600.0)\n'
        f"{WORK}print(monitel.ledger().elapsed_ns / 1e9)\n"
    )
    run("-m", "monitel_otlp", "replay", "spool", "--endpoint", receiver.url)
    found = {str(point.attributes["training.activity"]): point.value for point in receiver.points(TIME)}
    assert {"startup", "data", "step", "shutdown"} == set(found)
    assert float(ended.stdout) <= sum(found.values()) + 1e-6
    assert sum(found.values()) == pytest.approx(increase(receiver, TIME))
