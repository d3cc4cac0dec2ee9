"""``configure()``: its arguments and their variables, as ``docs/reference/configuration.md`` has them."""

import base64
import gc
import inspect
import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support import backends
from tests.support.checks import SetEnv, Warned
from tests.support.inbox import DEADLINE, TEMPORALITY
from tests.support.pipelines import Start, emit
from tests.support.producers import record_ranges, repeating
from tests.support.receiver import Receiver
from tests.support.spools import spooled
from tests.unit.promises.reference_tables import code, table

import monitel
import monitel_otlp
from monitel import COUNT, HISTOGRAM, Stat

TOKEN = "sesame-4711"
HISTOGRAMS = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
EXPONENTIAL = "base2_exponential_bucket_histogram"
SWITCHES = ("rank_attribute", "workers", "run_events", "system")
#: Wrong values of each argument, with the error and words of its message.
WRONG: dict[str, list[tuple[Any, type[Exception], list[str]]]] = {
    "service_name": [(5, TypeError, ["str", "int"]), ("a\ud800", TypeError, ["UTF-8", "'a\\ud800'"])],
    "endpoint": [
        (4318, TypeError, ["'http://localhost:4318'", "int"]),
        ("localhost:4318", ValueError, ["must begin with http://"]),
        ("http://", ValueError, ["no host"]),
        ("http://host:99999", ValueError, ["from 1 to 65535"]),
        (f"http://user:a/{TOKEN}@host", ValueError, ["'@' after the host", "%2F"]),
        ("http://host:4318/v1?key=1", ValueError, ["query"]),
        ("http://host/otlp/v1/logs/", ValueError, ["/v1/..., which is appended"]),
    ],
    "protocol": [("http/json", ValueError, ["'http/protobuf' or 'grpc'", "got 'http/json'"])],
    "headers": [
        ("a=b", TypeError, ["mapping", "got str"]),
        ({"a": 1}, TypeError, ["str to str", "'a'"]),
        ({"a": f"{TOKEN}\n"}, ValueError, ["'a'"]),
        ({"a b": TOKEN}, ValueError, ["'a b'"]),
    ],
    "export_interval": [
        ("5", TypeError, ["seconds", "got '5'"]),
        (True, TypeError, ["seconds", "got True"]),
        (0, ValueError, ["above 0", "got 0"]),
        (86_401, ValueError, ["one day (86400)", "got 86401"]),
        (float("nan"), ValueError, ["got nan"]),
    ],
    "resource_attributes": [
        ([("a", 1)], TypeError, ["mapping", "list"]),
        ({"a": ...}, TypeError, ["str, int, float or bool", "'a'"]),
        ({"": "a"}, ValueError, ["empty"]),
        ({"a": 2**63}, ValueError, ["'a'", "64 bits", str(2**63)]),
    ],
    "resource": [({}, TypeError, ["OpenTelemetry Resource", "got dict"])],
    "spool_dir": [(5, TypeError, ["a path", "got int"]), (f"{__file__}/runs", ValueError, [f"'{__file__}' is a file"])],
    "distributions": [("all", ValueError, ["'percentiles' or 'histogram' or 'both'", "got 'all'"])],
    "ranks": [(each, ValueError, ["'all' or 'zero'", f"got {each!r}"]) for each in ("Zero", ["zero"])],
    **{name: [(1, TypeError, ["True or False", "got 1"])] for name in SWITCHES},
    "sigterm": [("on", TypeError, ['True, False or "auto"', "got 'on'"]), (1, TypeError, ["got 1"])],
    "logging_level": [("LOUD", ValueError, ["'LOUD'"]), (1.5, TypeError, ["1.5"])],
    "spans": [
        (None, TypeError, ["True or False", "got None"]),
        (1, TypeError, ["'budget', 'steps', 'step_traces'", "got 1"]),
        ({"every": 2}, TypeError, ["'budget', 'steps', 'step_traces'", "'every'"]),
        ({"budget": 0}, ValueError, ["spans['budget'] must be at least 1", "got 0"]),
        ({"budget": 1.5}, TypeError, ["int", "1.5"]),
        ({"steps": 0}, ValueError, ["spans['steps']", "at least 1", "got 0"]),
        ({"step_traces": "yes"}, TypeError, ["spans['step_traces']", "True or False", "got 'yes'"]),
    ],
    "series_limit": [(0, ValueError, ["at least 1", "got 0"]), (True, TypeError, ["int", "bool"])],
    "black_box": [
        (None, TypeError, ["True or False", "a path", "'folder', 'size'", "got None"]),
        (b"boxes", TypeError, ["a path", "got bytes"]),
        ({"folder": "a\0b"}, ValueError, ["black_box['folder']", "null character", "'a\\x00b'"]),
        ({"size": 65_535}, ValueError, ["black_box['size']", "at least 65536", "got 65535"]),
        ({"size": "4M"}, TypeError, ["int", "'4M'"]),
    ],
}

#: Wrong values of variables, and what the warning expects and uses instead.
WRONG_VARIABLES = {
    "MONITEL_SPOOL_DIR": ("/proc/version/below", "the path of a folder, which may be new", "the default"),
    "MONITEL_DISTRIBUTIONS": ("exponential", "percentiles or histogram or both", "the default"),
    "MONITEL_RANKS": ("none", "all or zero", "'all'"),
    "MONITEL_RANK_ATTRIBUTE": ("maybe", "true or false", "False"),
    "MONITEL_WORKERS": ("2", "true or false", "False"),
    "MONITEL_SIGTERM": ("15", "auto, false, or true in the main thread", "'auto'"),
    "MONITEL_LOGGING_LEVEL": ("LOUD", "a level of Python's logging such as INFO", "the default"),
    "MONITEL_SPANS": ("yess", "true or false", "False"),
    "MONITEL_SPAN_BUDGET": (f"https://me:{TOKEN}@host", "an int of at least 1", "the default"),
    "MONITEL_SPAN_STEPS": (f"hf_{TOKEN}", "an int of at least 1", "1"),
    "MONITEL_STEP_TRACES": ("-", "true or false", "False"),
    "MONITEL_SERIES_LIMIT": ("1e3", "an int of at least 1", "2000"),
    "MONITEL_RUN_EVENTS": ("no!", "true or false", "True"),
    "MONITEL_SYSTEM": ("cpu", "true or false", "False"),
    "MONITEL_BLACK_BOX": ("x", "true or false", "True"),
    "MONITEL_BLACK_BOX_DIR": ("/proc/version", "the path of a folder, which may be new", "the default"),
    "MONITEL_BLACK_BOX_SIZE": ("4M", "a number of bytes of at least 65536", "16777216"),
    "OTEL_METRIC_EXPORT_INTERVAL": ("86400001", "a number of milliseconds (at most one day)", "5000 ms"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("pigeon", "http/protobuf or grpc", "http/protobuf"),
    "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": ("-1", "a positive number of seconds", "10 s"),
    TEMPORALITY: ("sometimes", "cumulative or delta or lowmemory", "cumulative"),
    HISTOGRAMS: ("exponential", f"explicit_bucket_histogram or {EXPONENTIAL}", "explicit_bucket_histogram"),
    "OTEL_EXPORTER_OTLP_COMPRESSION": ("brotli", "none or gzip or deflate", "none"),
}


def outcome(**arguments: Any) -> Exception | None:
    try:
        monitel_otlp.configure(**arguments).shutdown()
    except Exception as error:
        return error
    return None


def test_wrong_argument_raises_and_changes_nothing(receiver: Receiver, start: Start, own_boxes: Path) -> None:
    """The error has the argument, what was given and what is expected, but no token; a running pipeline goes on."""
    assert {*inspect.signature(monitel_otlp.configure).parameters} == {*WRONG}
    pipeline = start()
    monitel.emit("begins")
    threads, boxes = {*threading.enumerate()}, [*own_boxes.iterdir()]
    for name, cases in WRONG.items():
        for value, kind, words in cases:
            error = outcome(**{name: value})
            assert kind is type(error), (name, value, error)
            missing = [word for word in [name, *words] if word not in str(error)]
            assert ([], False) == (missing, TOKEN in str(error)), (name, value, error)
    assert threads == {*threading.enumerate()}
    assert boxes == [*own_boxes.iterdir()]
    assert emit(pipeline, "still there")
    assert ["begins", "still there"] == receiver.record_names()
    assert isinstance(outcome(endpont=receiver.url), TypeError)


def test_wrong_variables_are_warnings_and_the_defaults_apply(
    receiver: Receiver, own_boxes: Path, setenv: SetEnv, warned: Warned, caplog: pytest.LogCaptureFixture
) -> None:
    """All are wrong, and everything is delivered. Each warning comes once; what looks like a secret is masked."""
    rows = table("configuration.md", "argument", "variable, if the argument is omitted", under="configure")
    documented = {name for row in rows for name in code(row[1]) if name.startswith("MONITEL_")}
    assert documented == {name for name in WRONG_VARIABLES if name.startswith("MONITEL_")}
    setenv({name: text for name, (text, _, _) in WRONG_VARIABLES.items()}, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    for _ in range(2):
        with monitel_otlp.configure(black_box=own_boxes) as pipeline:
            Stat("loss", [COUNT], 60.0).add(1)
            assert Path("state/monitel").resolve() == Path(pipeline.spool_dir).parent
    assert [1, 1] == receiver.values("loss.count")
    assert 2 * ["run.started", "run.ended"] == receiver.record_names()
    masked = {f"https://me:{TOKEN}@host": "https://***@host", f"hf_{TOKEN}": "***"}
    expected = {
        f"{name}: expected {expectation}, got {masked.get(text, text)!r:.80}; using {used}"
        for name, (text, expectation, used) in WRONG_VARIABLES.items()
        if name not in {"MONITEL_BLACK_BOX", "MONITEL_BLACK_BOX_DIR"}  # the argument is given
    }
    assert expected == {*warned()}
    assert all(1 == len(warned(each)) for each in warned() if each.startswith("MONITEL_"))
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("url", ["localhost:4318", "http://host:port", "http://[::1"])
def test_malformed_address_in_a_variable_loses_nothing(setenv: SetEnv, warned: Warned, url: str) -> None:
    """The job continues, everything is in the spool, and one warning names the variable."""
    setenv(OTEL_EXPORTER_OTLP_ENDPOINT=url)
    with monitel_otlp.configure(spool_dir="spool"):
        Stat("loss", [COUNT], 60.0).add(1)
        monitel.emit("event")
    assert ([1], ["event"]) == spooled(Path("spool"))
    (warning,) = warned("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert "(the value is not shown, as it may hold a password); telemetry for it is kept on disk" in warning


def test_argument_overrides_its_variable(
    receiver: Receiver, start: Start, setenv: SetEnv, tmp_path: Path, warned: Warned
) -> None:
    """Even if it equals the default; the variable is not read then, so a wrong one is not reported."""
    setenv(
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://127.0.0.1:9/other",
        MONITEL_SPOOL_DIR="from-variable",
        MONITEL_SPAN_STEPS="often",
        MONITEL_RANKS="zero",
        RANK="1",
        TORCHELASTIC_RUN_ID="run-7",
        OTEL_SERVICE_NAME="from-variable",
        OTEL_RESOURCE_ATTRIBUTES="team=a,host.name=n1,host.arch=sparc,training.rank=5",
    )
    pipeline = start(
        endpoint=f"{receiver.url}/otlp/",
        ranks="all",
        spans={"steps": 1},
        service_name="train",
        resource_attributes={"host.arch": "vax", "training.run.id": "baseline"},
    )
    assert emit(pipeline, "event")
    assert {"/otlp/v1/logs", "/otlp/v1/metrics"} == {request.path for request in receiver.requests}
    assert tmp_path / "spool" == Path(pipeline.spool_dir).parent
    expected: dict[str, Any] = {"service.name": "train", "team": "a", "host.name": "n1", "host.arch": "vax"}
    expected |= {"training.rank": "5", "training.run.id": "baseline"}
    assert expected.items() <= receiver.records("event")[0].resource.items()
    assert [] == warned("SPAN_STEPS")


def test_empty_variable_is_not_set(receiver: Receiver, setenv: SetEnv, warned: Warned, tmp_path: Path) -> None:
    setenv(dict.fromkeys(WRONG_VARIABLES, " "), MONITEL_RUN_EVENTS="0")
    with monitel_otlp.configure(endpoint=receiver.url, black_box=tmp_path / "boxes") as pipeline:
        assert tmp_path / "state/monitel" == Path(pipeline.spool_dir).parent
    assert [] == warned()


def test_headers_of_all_sources_add_up(receiver: Receiver, start: Start, setenv: SetEnv) -> None:
    """The argument wins by name, in any case; a signal's variable replaces the general one; values are decoded.

    User and password of the address are sent as Basic authorization.
    """
    setenv(OTEL_EXPORTER_OTLP_HEADERS="key=Bearer%20x%2Cy,tenant=all,only=general")
    setenv(OTEL_EXPORTER_OTLP_LOGS_HEADERS="tenant=logs")
    url = receiver.url.replace("://", "://me%40here:pass%2Fw%23%20rd@")
    assert emit(start(headers={"Only": "argument"}, endpoint=url), "event")
    names = ("key", "tenant", "only")
    found = {request.signal: [request.headers.get(name) for name in names] for request in receiver.requests}
    assert {"metrics": ["Bearer x,y", "all", "argument"], "logs": [None, "logs", "argument"]} == found
    credentials = base64.b64encode(b"me@here:pass/w# rd").decode()
    assert {f"Basic {credentials}"} == {request.headers["authorization"] for request in receiver.requests}


def test_grpc_address_without_a_scheme_uses_tls(
    grpc_receiver: Any, start: Start, setenv: SetEnv, warned: Warned
) -> None:
    """Unless a variable says that it is insecure, with ``true`` in any case; another word is a warning."""
    setenv(OTEL_EXPORTER_OTLP_PROTOCOL="grpc", OTEL_EXPORTER_OTLP_ENDPOINT=grpc_receiver.address)
    for value in ("", "1"):
        setenv(OTEL_EXPORTER_OTLP_INSECURE=value)
        assert start(endpoint=None).endpoints["logs"].startswith("https://")
    assert ["OTEL_EXPORTER_OTLP_INSECURE: expected true or false, got '1'; using false"] == warned("INSECURE")
    setenv(OTEL_EXPORTER_OTLP_INSECURE="True")
    assert emit(start(endpoint=None), "event")
    assert ["event"] == grpc_receiver.record_names()


def what_is_sent(receiver: Receiver, **arguments: Any) -> set[Any]:
    """Record something of each kind; return points by metric and attributes, names of records, and spans by step."""
    receiver.requests.clear()
    with monitel_otlp.configure(endpoint=receiver.url, **arguments) as pipeline:
        for step in range(4):
            monitel.set_step(step)
            record_ranges("own", "folded", "folded")
        for layer in range(3):
            Stat("wide", [COUNT, HISTOGRAM], 60.0, attributes={"layer": layer}).add(1.0)
        logging.getLogger("mine").warning("below")
        logging.getLogger("mine").error("at the level")
        pipeline.shutdown(DEADLINE)
    points = {(each.metric, repr(each.attributes)) for each in receiver.all_points() if each.metric[:4] == "wide"}
    spans = {(each.name, each.attributes["training.step"]) for each in receiver.spans()}
    return points | spans | {each.name or each.body for each in receiver.records()}


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [
        ({"MONITEL_RUN_EVENTS": " On "}, {"run_events": True}),
        ({"MONITEL_SPANS": "TRUE"}, {"spans": True}),
        ({"MONITEL_SPANS": "1", "MONITEL_SPAN_BUDGET": "1"}, {"spans": {"budget": 1}}),
        ({"MONITEL_SPANS": "yes", "MONITEL_SPAN_STEPS": "2"}, {"spans": {"steps": 2}}),
        ({"MONITEL_STEP_TRACES": "on"}, {"spans": {"step_traces": True}}),
        ({"MONITEL_RANK_ATTRIBUTE": "true"}, {"rank_attribute": True}),
        ({"MONITEL_SERIES_LIMIT": "1"}, {"series_limit": 1}),
        (
            {"MONITEL_DISTRIBUTIONS": "both", HISTOGRAMS: "base2_exponential_bucket_histogram"},
            {"distributions": "both"},
        ),
        ({HISTOGRAMS: EXPONENTIAL}, {"distributions": "histogram"}),
        ({"MONITEL_LOGGING_LEVEL": "error"}, {"logging_level": "ERROR"}),
        ({"MONITEL_LOGGING_LEVEL": "40"}, {"logging_level": 40}),
    ],
)
def test_variable_is_the_default_of_its_argument(
    receiver: Receiver, setenv: SetEnv, variables: dict[str, str], arguments: dict[str, Any]
) -> None:
    """Both change what is sent in the same way; the argument overrides the variable."""
    setenv({"RANK": "3", "WORLD_SIZE": "4", "MONITEL_RUN_EVENTS": "OFF"})
    usual, expected = what_is_sent(receiver), what_is_sent(receiver, **arguments)
    setenv(variables)
    assert usual != expected == what_is_sent(receiver)
    for name, default in {"spans": False, "distributions": "percentiles"}.items():
        assert name not in arguments or usual == what_is_sent(receiver, **{name: default})


def test_sigterm_is_handled_on_request_in_the_main_thread(receiver: Receiver, setenv: SetEnv, warned: Warned) -> None:
    """In another thread the argument raises, the variable is a warning, and ``auto`` handles nothing."""
    for value in ("false", "auto", "true"):
        setenv(MONITEL_SIGTERM=value)
        with monitel_otlp.configure(endpoint=receiver.url):
            assert (value == "false") == (signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        error = pool.submit(outcome, endpoint=receiver.url, sigterm=True).result()
        assert (ValueError, True) == (type(error), str(error).startswith("sigterm=True requires the main thread"))
        pipeline = pool.submit(lambda: monitel_otlp.configure(endpoint=receiver.url)).result()
        assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)
        pool.submit(pipeline.shutdown).result()
    expected = "MONITEL_SIGTERM: expected auto, false, or true in the main thread, got 'true'; using 'auto'"
    assert [expected] == warned("SIGTERM")


def test_black_box_can_be_switched_off_and_moved(start: Start, own_boxes: Path, setenv: SetEnv) -> None:
    """Off: not even a folder. Elsewhere: there and nowhere else, and gone after the shutdown."""
    off: list[tuple[str, dict[str, Any]]] = [("on", {"black_box": False}), ("off", {})]
    for variable, arguments in off:
        setenv(MONITEL_BLACK_BOX=variable)
        start(**arguments)
        monitel.emit("event")
        assert not own_boxes.exists()
    own_boxes.mkdir(0o700)
    setenv(MONITEL_BLACK_BOX="", MONITEL_BLACK_BOX_DIR=own_boxes / "variable")
    elsewhere: dict[str, dict[str, Any]] = {"variable": {}, "argument": {"black_box": own_boxes / "argument"}}
    for name, arguments in elsewhere.items():
        pipeline = start(**arguments)
        monitel.emit("event")
        assert [name] == [each.parent.name for each in own_boxes.glob("*/*")]
        pipeline.shutdown()
        assert [] == [*own_boxes.glob("*/*")]


def test_spool_is_in_the_documented_place(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, the variable, XDG_STATE_HOME, with and without an endpoint, and the home."""
    monkeypatch.setenv("HOME", f"{Path.cwd()}/home")
    monkeypatch.setenv("MONITEL_SPOOL_DIR", "~/variable")
    found = [start(spool_dir="argument"), monitel_otlp.configure(endpoint=receiver.url)]
    monkeypatch.delenv("MONITEL_SPOOL_DIR")
    found += [start(spool_dir=None, endpoint=None), start(spool_dir=None)]
    monkeypatch.delenv("XDG_STATE_HOME")
    found.append(start(spool_dir=None))
    places = [Path(each.spool_dir).parent.relative_to(Path.cwd()) for each in found]
    expected = ["argument", "home/variable", "state/monitel", "state/monitel", "home/.local/state/monitel"]
    assert [*map(Path, expected)] == places


def test_bytes_that_are_not_utf8_are_escaped(receiver: Receiver, start: Start, setenv: SetEnv, warned: Warned) -> None:
    setenv(OTEL_SERVICE_NAME="tr\udce4in", OTEL_RESOURCE_ATTRIBUTES="team=\udcff,gr\udcfcn=1", SLURM_JOB_ID="j\udce4b")
    assert emit(start(), "event")
    expected = {"service.name": "tr\\udce4in", "team": "\\udcff", "gr\\udcfcn": "1", "training.run.id": "j\\udce4b"}
    assert expected.items() <= receiver.records("event")[0].resource.items()
    assert [] == warned()


def test_pipeline_that_has_ended_keeps_nothing_open(receiver: Receiver, tmp_path: Path) -> None:
    """A sweep that configures for each trial does not run out of descriptors."""
    opened = []
    for _ in range(4):
        with monitel_otlp.configure(endpoint=receiver.url, spool_dir=tmp_path):
            monitel.emit("trial")
            monitel.log({"loss": 1.0})
        backends._made.clear()  # the tests keep their pipelines, to look at the accounts
        gc.collect()
        opened.append(len([*Path("/proc/self/fd").iterdir()]))
    assert opened[-1] <= opened[1]  # what an earlier test has left may be closed meanwhile


def test_items_of_other_threads_are_in_one_of_two_pipelines(receiver: Receiver, start: Start, setenv: SetEnv) -> None:
    """Events and samples go on while one pipeline ends and the next one is made, and a window waits for a value."""
    setenv({TEMPORALITY: "delta"})
    pipelines, expected, pending = [start()], list[str](), list[Any]()
    device = Stat("device", [COUNT], 3600.0)
    device._add_pending(pending.append, lambda: None)
    device.flush()

    def record(stat: Stat) -> None:
        event = f"{stat.definition.attributes} {len(expected)}"
        expected.append(event)
        monitel.emit("event", id=event)
        stat.add(1)
        stat.flush()

    stats = [
        Stat("loss", [COUNT], 3600.0, attributes={"thread": thread}) for thread in range(3)
    ]  # else a window may have two samples
    with repeating(*(partial(record, stat) for stat in stats), pause=0.0002):
        for _ in range(5):
            assert pipelines[-1].force_flush(DEADLINE)
            pipelines.append(start())
    pending[0].resolve(1.0)
    monitel.flush()
    assert pipelines[-1].force_flush(DEADLINE)
    assert sorted(expected) == sorted(each.attributes["id"] for each in receiver.records("event"))
    assert (len(expected), 1) == (sum(receiver.values("loss.count")), sum(receiver.values("device.count")))
    found = {signal: sum(each.account()[signal].recorded for each in pipelines) for signal in ("metrics", "logs")}
    assert {"metrics": len(expected) + 1, "logs": len(expected)} == found
