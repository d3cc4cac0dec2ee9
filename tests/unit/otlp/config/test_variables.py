"""MONITEL_* variables of ``configure()``: they have the effect of their arguments, and wrong values are reported."""

from __future__ import annotations

import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE

import monitel
import monitel_otlp
from monitel import COUNT, HISTOGRAM, Stat, variables
from monitel.profiler import record_function
from monitel.variables import BOOLEAN, Variable, read_variables
from monitel_otlp.choices import CHOICES
from monitel_otlp.commands.doctor import examine

if TYPE_CHECKING:
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock

AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
#: For each argument the text of its variable, and the value of the argument.
VALUES: dict[str, tuple[str, object]] = {
    "spool_dir": ("runs/here", Path("runs/here")),
    "distributions": ("Both", "both"),
    "ranks": ("ZERO", "zero"),
    "rank_attribute": ("yes", True),
    "workers": ("1", True),
    "sigterm": ("Auto", "auto"),
    "logging_level": ("warning", "WARNING"),
    "spans": ("true", True),
    "span_budget": ("7", 7),
    "span_steps": ("100", 100),
    "step_traces": ("on", True),
    "series_limit": ("50000", 50_000),
    "run_events": ("off", False),
    "system": ("true", True),
    "black_box": ("off", False),
    "black_box_dir": ("/dev/shm/boxes", Path("/dev/shm/boxes")),
    "black_box_size": ("65536", 65_536),
}
WRONG = {
    "spool_dir": [__file__, f"{__file__}/below"],
    "distributions": ["exponential", "1"],
    "ranks": ["none", "0"],
    "sigterm": ["maybe", "15"],
    "logging_level": ["LOUD", "-1", "1.5"],
    "span_budget": ["0", "-1", "many", "1.5", "9" * 5000],
    "span_steps": ["0", "1e3"],
    "series_limit": ["0", "2,000"],
    "black_box_dir": [__file__, f"{__file__}/below"],
    "black_box_size": ["65535", "-1", "4M", "1e6"],
}
WITH_VARIABLE = [name for name, variable in CHOICES.items() if isinstance(variable, Variable)]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as if no warning had been logged."""
    monkeypatch.setattr(variables, "_warned", set())


def configure(receiver: Receiver, **arguments: Any) -> monitel_otlp.Pipeline:
    """Return a pipeline that sends to the receiver when it is flushed."""
    return monitel_otlp.configure(endpoint=receiver.url, export_interval=3600.0, **arguments)


def test_tables_have_each_variable() -> None:
    """Each argument has a value, and a wrong value unless the variable is a boolean."""
    assert set(WITH_VARIABLE) == set(VALUES)
    assert {name for name in WITH_VARIABLE if CHOICES[name] != BOOLEAN} == set(WRONG)


@pytest.mark.parametrize("name", WITH_VARIABLE)
def test_variable_has_the_value_of_its_argument(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The text is converted to the type of the argument."""
    text, value = VALUES[name]
    monkeypatch.delenv("MONITEL_RUN_EVENTS")
    monkeypatch.delenv("MONITEL_BLACK_BOX_DIR")
    monkeypatch.setenv(f"MONITEL_{name.upper()}", text)
    found = read_variables(CHOICES, dict.fromkeys(CHOICES))
    assert {name: value} == found
    assert type(value) is type(found[name])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, id=f"{name}-{number}")
        for name in WITH_VARIABLE
        for number, text in enumerate(WRONG.get(name, ["maybe", "2"]))
    ],
)
def test_wrong_value_is_one_warning(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    """The pipeline has the default, and delivers."""
    monkeypatch.setenv(f"MONITEL_{name.upper()}", text)
    configure(receiver)
    with configure(receiver) as pipeline:
        monitel.emit("event")
        assert pipeline.force_flush(DEADLINE)
    assert 1 == receiver.record_names().count("event")
    (message,) = [record.getMessage() for record in caplog.records if "MONITEL_" in record.getMessage()]
    assert message.startswith(f"MONITEL_{name.upper()}: expected ")
    assert f", got {text[:80]!r}; using " in message


def test_distributions_override_the_standard_variable(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """The standard variable cannot name both forms."""
    monkeypatch.setenv(AGGREGATION, "base2_exponential_bucket_histogram")
    monkeypatch.setenv("MONITEL_DISTRIBUTIONS", "both")
    with configure(receiver):
        Stat("x", [HISTOGRAM], 60.0).add(1.0)
        clock.advance(60)
    assert {"x.histogram", "x.p50"} <= {point.metric for point in receiver.all_points()}


@pytest.mark.parametrize(("rank", "names"), [("0", ["event"]), ("1", [])])
def test_only_rank_zero_exports(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, rank: str, names: list[str]
) -> None:
    """MONITEL_RANKS=zero selects it."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("MONITEL_RANKS", "zero")
    with configure(receiver):
        monitel.emit("event")
    assert names == receiver.record_names()


def test_points_have_the_rank_and_share_series_beyond_the_limit(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MONITEL_RANK_ATTRIBUTE and MONITEL_SERIES_LIMIT have their effects."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MONITEL_RANK_ATTRIBUTE", "true")
    monkeypatch.setenv("MONITEL_SERIES_LIMIT", "1")
    with configure(receiver):
        for layer in range(3):
            Stat("wide", [COUNT], 60.0, attributes={"layer": layer}).add(1.0)
    found = {point.attributes.get("layer", "others"): point for point in receiver.points("wide.count")}
    assert {3} == {point.attributes["training.rank"] for point in found.values()}
    assert {0: 1, "others": 2} == {layer: point.value for layer, point in found.items()}


def test_ranges_become_spans_within_the_budget(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """MONITEL_SPANS, MONITEL_SPAN_BUDGET and MONITEL_SPAN_STEPS have their effects."""
    for name, value in {"SPANS": "true", "SPAN_BUDGET": "1", "SPAN_STEPS": "2"}.items():
        monkeypatch.setenv(f"MONITEL_{name}", value)
    with configure(receiver):
        for step in range(4):
            monitel.set_step(step)
            for name in ("own", "folded", "folded"):
                with record_function(name):
                    pass
    spans = [(span.name, span.attributes["training.step"]) for span in receiver.spans()]
    assert [("monitel.folded", 0), ("monitel.folded", 2), ("own", 0), ("own", 2)] == sorted(spans)


def test_log_records_are_exported_from_a_level_on(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """MONITEL_LOGGING_LEVEL is a name or a number."""
    for level in ("error", "40"):
        monkeypatch.setenv("MONITEL_LOGGING_LEVEL", level)
        with configure(receiver):
            logging.getLogger("mine").warning("below %s", level)
            logging.getLogger("mine").error("at %s", level)
    assert ["at error", "at 40"] == [record.body for record in receiver.records()]


@pytest.mark.parametrize(("value", "handled"), [("false", False), ("true", True), ("auto", True)])
def test_sigterm_is_handled(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, value: str, *, handled: bool) -> None:
    """MONITEL_SIGTERM switches the handler."""
    monkeypatch.setenv("MONITEL_SIGTERM", value)
    before = signal.getsignal(signal.SIGTERM)
    with configure(receiver):
        assert handled == (signal.getsignal(signal.SIGTERM) is not before)
    assert before is signal.getsignal(signal.SIGTERM)


def test_sigterm_outside_the_main_thread_is_a_warning(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The argument raises there; the variable does not."""
    monkeypatch.setenv("MONITEL_SIGTERM", "true")
    with ThreadPoolExecutor() as pool, pytest.raises(ValueError, match="main thread"):
        pool.submit(configure, receiver, sigterm=True).result()
    with ThreadPoolExecutor() as pool:
        pool.submit(configure, receiver).result().shutdown()
    expected = "MONITEL_SIGTERM: expected auto, false, or true in the main thread, got 'true'; using 'auto'"
    assert [expected] == [record.getMessage() for record in caplog.records if "SIGTERM" in record.getMessage()]


def test_run_events_are_switched_on(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """MONITEL_RUN_EVENTS=0 is set for the tests; the argument overrides the variable."""
    with configure(receiver):
        pass
    assert [] == receiver.record_names()
    with configure(receiver, run_events=True):
        pass
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "Yes")
    with configure(receiver):
        pass
    assert 2 * ["run.started", "run.ended"] == receiver.record_names()


def test_spool_folder_is_below_the_variables_folder(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MONITEL_SPOOL_DIR overrides XDG_STATE_HOME, and is overridden by the argument."""
    monkeypatch.setenv("MONITEL_SPOOL_DIR", str(tmp_path / "from-variable"))
    with configure(receiver) as pipeline:
        assert tmp_path / "from-variable" == Path(pipeline.spool_dir).parent
    with configure(receiver, spool_dir=tmp_path / "from-argument") as pipeline:
        assert tmp_path / "from-argument" == Path(pipeline.spool_dir).parent


def test_doctor_shows_the_variables(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The report names the variable of each value, and wrong values."""
    monkeypatch.setenv("MONITEL_SPOOL_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("MONITEL_SPAN_BUDGET", "10")
    monkeypatch.setenv("MONITEL_RANKS", "one")
    assert 0 == examine(receiver.url, {}, None)
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["spool", f"{tmp_path / 'here'}  (MONITEL_SPOOL_DIR)"] in rows
    assert ["span", "budget        10  (MONITEL_SPAN_BUDGET)"] in rows
    assert ["problem", "MONITEL_RANKS: expected all or zero, got 'one'; using 'all'"] in rows
