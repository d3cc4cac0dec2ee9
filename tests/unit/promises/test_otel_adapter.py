"""monitel_otel gives the application's own OpenTelemetry providers everything: instruments, log records and spans."""

import datetime as dt
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode
from tests.support.checks import SetEnv, Warned
from tests.support.producers import close_windows, record_ranges, record_window, repeating, run_together
from tests.unit.promises.providers import Backend, in_memory

import monitel
import monitel_otel
from monitel import COUNT, HISTOGRAM, MAX, MEAN, MIN, STDDEV, SUM, VALUE, Stat
from monitel.profiler import ranges, record_function
from monitel.stats.definition import TORCHS
from monitel.testing import ManualClock
from monitel_otel import Installation
from monitel_otel.scope import SCHEMA_URL

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@pytest.fixture
def backend() -> Iterator[Backend]:
    """Yield providers in memory; everything that they have exported must be valid."""
    with in_memory() as backend:
        yield backend


@pytest.fixture
def installed(backend: Backend) -> Iterator[Installation]:
    with backend.install() as installation:
        yield installation


def points(backend: Backend, metric: str) -> list[tuple[float, dict[str, Any]]]:
    found = backend.collect().get(metric)
    return [] if found is None else [(each.value, dict(each.attributes)) for each in found.data.data_points]


def shape(metric: Any) -> tuple[str, str, bool | None]:
    """Return unit and kind of a metric: True for a sum that only rises. A sum is cumulative."""
    data = metric.data
    assert 2 == getattr(data, "aggregation_temporality", 2)
    return metric.unit, type(data).__name__, getattr(data, "is_monotonic", None)


def parents(spans: list[ReadableSpan]) -> dict[str, str]:
    """Return the name of each span's parent by the span's name; "" without a parent."""
    names = {each.context.span_id: each.name for each in spans if each.context}
    return {each.name: names[each.parent.span_id] if each.parent else "" for each in spans}


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.usefixtures("installed")
def test_each_aggregation_of_a_window_is_an_instrument(backend: Backend, clock: ManualClock) -> None:
    """COUNT and SUM add up over windows, the others have the last one; with unit, description and attributes."""
    every = [COUNT, SUM, MEAN, MAX, MIN, VALUE, STDDEV, HISTOGRAM]
    stat = Stat("step.time", every, 60.0, unit="s", description="a step", attributes={"split": "val", "fold": 3})
    close_windows(stat, clock, [1.0, 4.0], [2.0, 3.0, 1.0])
    metrics = backend.collect()
    assert {"monitel.windows", "step.time.p90", "step.time.p95"} < set(metrics)
    gauge = "s", "Gauge", None
    assert {
        "count": (5, "{sample}", "Sum", True),
        "sum": (11.0, "s", "Sum", False),
        "mean": (2.0, *gauge),
        "max": (3.0, *gauge),
        "min": (1.0, *gauge),
        "value": (1.0, *gauge),
        "stddev": (pytest.approx(math.sqrt(2 / 3)), *gauge),
        "p50": (pytest.approx(2.0, rel=0.01), *gauge),
        "p99": (pytest.approx(3.0, rel=0.01), *gauge),
    } == {
        name.rpartition(".")[2]: (metric.data.data_points[0].value, *shape(metric))
        for name, metric in metrics.items()
        if name not in {"monitel.windows", "step.time.p90", "step.time.p95"}
    }
    metric = metrics["step.time.mean"]
    assert ("a step", {"split": "val", "fold": 3}) == (metric.description, dict(metric.data.data_points[0].attributes))


@pytest.mark.usefixtures("installed")
def test_stats_of_one_name_share_an_instrument(backend: Backend, clock: ManualClock) -> None:
    """Other attributes are other points, equal ones add up. The first Stat decides the unit, and ``monotonic``."""
    for attributes, value in (({"split": "val"}, 1.0), ({"split": "train"}, 2.0), ({"split": "val"}, 4.0)):
        close_windows(Stat("tokens", [SUM], 60.0, attributes=attributes, monotonic=True), clock, [value])
    close_windows(
        Stat("tokens", [SUM], 60.0, attributes={"split": "val"}, unit="By", description="other"), clock, [3.0]
    )
    metric = backend.collect()["tokens.sum"]
    assert (("", "Sum", True), "") == (shape(metric), metric.description)
    assert [(8.0, {"split": "val"}), (2.0, {"split": "train"})] == points(backend, "tokens.sum")


def test_counts_and_sums_are_exact_while_threads_record_and_a_reader_collects(backend: Backend) -> None:
    """Each of four threads closes 300 windows; no window is lost or counted twice."""

    def work() -> None:
        for _ in range(300):
            record_window("loss", [COUNT, SUM], 2)

    with backend.install():
        work()  # the SDK begins a point after the time of the collection in which it is new
        with repeating(backend.collect):
            run_together(work, work, work)
        values = backend.values()
    assert (1200, 2400.0, 1200) == tuple(values[name] for name in ("loss.count", "loss.sum", "monitel.windows"))


@pytest.mark.usefixtures("installed")
def test_value_that_a_backend_cannot_use_is_left_out_and_counted(backend: Backend, clock: ManualClock) -> None:
    """NaN, infinities, and negative sums of a monotonic Stat are counted by Stat and aggregation."""
    close_windows(Stat("loss", [COUNT, SUM, MEAN], 60.0), clock, [1.0], [math.nan])
    close_windows(Stat("tokens", [SUM], 60.0, monotonic=True), clock, [5.0], [-3.0], [2.0])
    values = backend.values()
    assert (2, 1.0, 1.0, 7.0) == tuple(values[each] for each in ("loss.count", "loss.sum", "loss.mean", "tokens.sum"))
    assert [("loss", "mean", 1), ("loss", "sum", 1), ("tokens", "sum", 1)] == sorted(
        (each["stat"], each["aggregation"], value) for value, each in points(backend, "monitel.stat.nonfinite")
    )


@pytest.mark.usefixtures("installed")
def test_gauge_that_misses_windows_is_warned_about_once(backend: Backend, clock: ManualClock, warned: Warned) -> None:
    """Two windows between two collections cost a gauge one of them; counts and sums lose nothing."""
    exact, lossy = Stat("exact", [COUNT, SUM], 60.0), Stat("lossy", [MEAN], 60.0)
    for _ in range(3):
        backend.collect()
        close_windows(exact, clock, [1.0], [2.0])
        close_windows(lossy, clock, [1.0], [2.0])
    assert 1 == len(warned()) == len(warned("'lossy'", "OTEL_METRIC_EXPORT_INTERVAL"))


def test_two_sources_never_share_a_metric_name(backend: Backend, clock: ManualClock, warned: Warned) -> None:
    """A name that OpenTelemetry refuses is changed, a name in use gets a number or its kind, and both are reported."""
    for name in ("loss", "Loss", "1 st"):
        monitel.counter(name, description="hits").add(4)
    with backend.install():
        monitel.log({"loss": 0.5})
        close_windows(Stat("step time", [COUNT], 60.0, description="of a step"), clock, [1.0])
        metrics = backend.collect()
    expected = {"loss": "hits", "loss_2": "hits (Counted as 'Loss')", "loss.number": "Logged as 'loss'"}
    expected |= {"step_time.count": "of a step (Stat 'step time')", "stat_1_st": "hits (Counted as '1 st')"}
    assert expected == {name: metrics[name].description for name in expected}
    assert 2 == len(warned("have the same metric name"))


def test_counters_steps_and_waits_are_observed(backend: Backend, clock: ManualClock) -> None:
    """Each collection has the present totals, under the bare names, also of what was recorded before install()."""
    samples = monitel.counter("training.samples", unit="{sample}", attributes={"split": "train"})
    samples.add(32)
    with monitel.WaitCounter("data.loading").guard():
        clock.advance(2.0)
    with backend.install():
        metrics = backend.collect()
        assert ("{sample}", "Sum", True) == shape(metrics["training.samples"])
        assert [] == points(backend, "training.step")
        samples.add(28)
        for step in (7, 3):
            monitel.set_step(step)
            assert [(step, {})] == points(backend, "training.step")
        with monitel.WaitCounter("later").guard():
            monitel.emit("ready")  # from an event on, new wait counters are observed
        with monitel.WaitCounter("data.loading").guard():
            clock.advance(0.5)
            metrics |= backend.collect()
        longest = [points(backend, "data.loading.wait.max") for _ in range(2)]
    assert [[(0.5, {})], []] == longest, "since the last collection"
    assert [(60, {"split": "train"})] == points(backend, "training.samples")
    assert [(1, {})] == points(backend, "later.wait.count")
    assert {
        "time": (2.0, "s", "Sum", True),
        "count": (1, "{wait}", "Sum", True),
        "active": (1, "{wait}", "Sum", False),
        "max": (2.0, "s", "Gauge", None),
    } == {
        name.rpartition(".")[2]: (metric.data.data_points[0].value, *shape(metric))
        for name, metric in metrics.items()
        if name.startswith("data.loading.wait.")
    }


@pytest.mark.usefixtures("installed")
def test_ledger_is_observed_as_time_and_goodput(backend: Backend) -> None:
    """The seconds of the activities add up to the life of the process; the goodput is the share of the steps."""
    assert ([], []) == (points(backend, "training.time"), points(backend, "training.goodput"))
    with monitel.activity("evaluation"):
        pass
    monitel.set_step(1)
    before: Any = monitel.ledger()
    metrics = backend.collect()
    after: Any = monitel.ledger()
    shapes = [shape(metrics[name]) for name in ("training.time", "training.goodput")]
    assert [("s", "Sum", True), ("1", "Gauge", None)] == shapes
    seconds = {each.attributes["training.activity"]: each.value for each in metrics["training.time"].data.data_points}
    assert {"startup", "evaluation", "other", "step"} == seconds.keys()
    assert before.elapsed_ns - 1000 <= sum(seconds.values()) * 1e9 <= after.elapsed_ns + 1000
    (share,) = [each.value for each in metrics["training.goodput"].data.data_points]
    assert before.activities["step"] / after.elapsed_ns <= share <= after.activities["step"] / before.elapsed_ns


@pytest.mark.usefixtures("installed")
def test_logged_numbers_are_gauges_and_one_record(backend: Backend, clock: ManualClock) -> None:
    """A gauge has the last number; the record has all of a call, the step and the attributes. config() is a record."""
    close_windows(Stat("metrics only", [SUM], 60.0), clock, [1.0])
    for loss in (0.5, 0.25):
        monitel.log({"loss": loss, "training.mfu": 0.4}, step=3, split="val")
    monitel.config({"lr": 0.5, "model": {"layers": [1, None]}})
    metrics = backend.collect()
    assert ([("", "Gauge", None), ("1", "Gauge", None)], [(0.25, {"split": "val"})]) == (
        [shape(metrics[name]) for name in ("loss", "training.mfu")],
        points(backend, "loss"),
    )
    assert [
        ("run.log", {"loss": 0.5, "training.mfu": 0.4}, {"training.step": 3, "split": "val"}),
        ("run.log", {"loss": 0.25, "training.mfu": 0.4}, {"training.step": 3, "split": "val"}),
        ("run.config", {"lr": 0.5, "model": {"layers": [1, None]}}, {}),
    ] == [(each.event_name, each.body, dict(each.attributes)) for each in backend.records()]
    scopes = {each.instrumentation_scope for each in backend.exporter.get_finished_logs()}
    assert {("monitel", monitel.__version__, SCHEMA_URL)} == {
        (each.name, each.version, each.schema_url) for each in scopes if each
    }


@pytest.mark.usefixtures("installed")
def test_range_is_a_span(backend: Backend) -> None:
    """With its exact times, step, thread, arguments, and the error that left it."""
    received: list[Any] = []
    monitel.set_step(7)
    with ranges.listen(ended=received.append), suppress(KeyError), record_function("step"):
        with record_function("forward", {"batch": 32, "shape": (2, 3), "bad": object()}):
            pass
        raise KeyError
    forward, step = backend.spans()
    assert ("forward", received[0].start_ns, received[0].end_ns) == (forward.name, forward.start_time, forward.end_time)
    thread = {"thread.id": received[0].track.thread_id, "thread.name": "MainThread", "training.step": 7}
    assert {**thread, "batch": 32, "shape": (2, 3)} == attributes_of(forward)
    assert {**thread, "error.type": "KeyError"} == attributes_of(step)
    assert [StatusCode.UNSET, StatusCode.ERROR] == [each.status.status_code for each in (forward, step)]


@pytest.mark.usefixtures("installed")
def test_parent_of_a_span_is_the_innermost_range_or_span(backend: Backend) -> None:
    """Events carry the ids of the span around them; no context is attached."""
    tracer = backend.tracer_provider.get_tracer("mine")
    with tracer.start_as_current_span("request") as request, record_function("step"):
        assert request is trace.get_current_span()
        monitel.emit("step")
        with tracer.start_as_current_span("call"), record_function("in call"):
            monitel.emit("in call")
    monitel.emit("outside")
    expected = {"request": "", "step": "request", "call": "request", "in call": "call"}
    assert expected == parents(backend.spans())
    ids = {span.name: (span.context.trace_id, span.context.span_id) for span in backend.spans() if span.context}
    assert {"step": ids["step"], "in call": ids["in call"], "outside": (0, 0)} == {
        each.event_name: (each.trace_id or 0, each.span_id or 0) for each in backend.records()
    }


def test_spans_beyond_the_budget_are_folded_into_one(backend: Backend, clock: ManualClock) -> None:
    """With their number, names and time. A name that UTF-8 cannot encode is escaped: an exporter would fail with it."""
    with backend.install(spans={"budget": 2, "steps": 2}):
        for step in range(2):
            monitel.set_step(step)
            with record_function("step"):
                for name in ("load", "forward", "backward \ud800"):
                    with record_function(name):
                        clock.advance(2)
    assert {"step": "", "load": "step", "monitel.folded": "step"} == parents(backend.spans())
    (found,) = [attributes_of(each) for each in backend.spans() if each.name == "monitel.folded"]
    assert (2, 4.0) == (found["monitel.folded.count"], found["monitel.folded.seconds"])
    assert {"backward \\ud800", "forward"} == {*found["monitel.folded.names"]}


def test_range_that_is_folded_after_the_end_is_counted(backend: Backend) -> None:
    installation = backend.install(spans={"budget": 1})
    with record_function("first"), record_function("folded"):
        installation.uninstall()
    (found,) = [attributes_of(each) for each in backend.spans() if each.name == "monitel.folded"]
    assert (1, ("folded",)) == (found["monitel.folded.count"], found["monitel.folded.names"])


def test_sampling_of_the_application_applies(backend: Backend) -> None:
    """A provider that drops a range drops those inside it; spans are made on request only."""
    provider = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    with monitel_otel.install(backend.meter_provider, backend.logger_provider, provider), record_function("step"):
        assert ranges.current_range() is not None
    with monitel_otel.install(backend.meter_provider, backend.logger_provider), record_function("step"):
        assert ranges.current_range() is None
    assert [] == backend.spans()


def test_adapter_writes_while_it_is_installed(backend: Backend) -> None:
    """Leaving the block closes windows; a later one continues the counts; a second one, as of a notebook, replaces."""
    stat = Stat("loss", [COUNT], 60.0)

    def record(name: str) -> None:
        stat.add(1)
        monitel.emit(name)
        record_ranges(name)

    for number in (1, 2):
        backend.install()
        with backend.install() as installation:
            record(f"in {number}")
        installation.uninstall()
        record("late")
        stat.flush()
        assert [(number, {})] == points(backend, "loss.count")
    names = [each.event_name for each in backend.records()], [each.name for each in backend.spans()]
    assert (["in 1", "in 2"],) * 2 == names


def test_two_installations_of_a_meter_provider_count_once(backend: Backend, clock: ManualClock) -> None:
    """The windows of a Stat; when the first one has ended, those that are closed before a reader collects, too."""
    first, stat = backend.install(), Stat("loss", [COUNT], 60.0)
    with monitel_otel.install(backend.meter_provider, type(backend)().logger_provider):
        for number in (1, 2):
            stat.add(1)
            clock.advance(61)
            values = backend.values()
            assert (number, number) == (values["loss.count"], values["monitel.windows"])
            first.uninstall()


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_last_exporter_ends_the_run(backend: Backend, setenv: SetEnv, status: str) -> None:
    """With the status by the exception that leaves its block, which is not suppressed; once."""
    setenv(MONITEL_RUN_EVENTS="1")
    other = type(backend)()
    first = backend.install()
    with suppress(ValueError), other.install() as second:
        first.uninstall()
        if status == "failed":
            raise ValueError
    second.uninstall()
    assert ["run.started"] == [record.event_name for record in backend.records()]
    (ended,) = other.records()
    assert ("run.ended", status) == (ended.event_name, ended.attributes["run.status"])


def test_block_that_an_event_handler_ends_uninstalls(backend: Backend) -> None:
    """The exception of another handler at the last flush leaves the block, and nothing is written any more."""

    def refuse(event: monitel.Event) -> None:
        if event.window is not None:
            raise LookupError

    stat, handle = Stat("loss", [COUNT], 60.0), monitel.register_event_handler(refuse)
    with pytest.raises(LookupError), backend.install():
        stat.add(1.0)
    monitel.unregister_event_handler(handle)
    monitel.emit("event")
    assert ([(1, {})], []) == (points(backend, "loss.count"), backend.records())


def test_wrong_limit_is_an_error_that_installs_nothing(backend: Backend) -> None:
    for wrong in ({"budget": 0}, {"steps": -1}):
        with pytest.raises(ValueError, match=f"must be at least 1, got {next(iter(wrong.values()))}"):
            backend.install(spans=wrong)
    monitel.emit("event")
    assert [] == backend.records()


@pytest.mark.usefixtures("installed")
def test_years_outside_the_protocol_are_limited(backend: Backend) -> None:
    """The event has the earliest or the latest possible time."""
    second, microsecond = dt.timedelta(seconds=1), dt.timedelta(microseconds=1)
    for moment in (dt.datetime.min, EPOCH - second, EPOCH + microsecond, dt.datetime.max):  # noqa: DTZ901  naive
        monitel.log_event(monitel.Event("odd", moment, {}))
    assert [0, 0, 1000, 2**64 - 1] == [record.timestamp for record in backend.records()]


@pytest.mark.usefixtures("installed")
def test_first_window_of_a_stat_closes_in_a_collection(backend: Backend, clock: ManualClock) -> None:
    """An idle Stat is exported on time. Creating the instruments inside the callback does not deadlock."""
    for number in range(50):
        Stat(f"loss.{number}", TORCHS, 60.0).add(1)  # destructed with an open window
        monitel.stat(f"registered.loss.{number}").add(1)
    clock.advance(59)
    assert [] == points(backend, "registered.loss.0.count")
    clock.advance(1)
    run_together(backend.collect)
    values = backend.values()
    assert {1} == {values[f"loss.{number}.count"] for number in range(50)}
    assert {1} == {values[f"registered.loss.{number}.count"] for number in range(50)}
