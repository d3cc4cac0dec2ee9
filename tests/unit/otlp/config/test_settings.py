"""Arguments and OTEL_* variables: valid values are used, and invalid ones are reported once."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import Answer
from tests.support.spools import LastLine, last_line

import monitel
import monitel_otlp
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

TOKEN = "sesame-4711"


@pytest.mark.parametrize(
    ("variables", "headers", "expected"),
    [
        ({"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,tenant=a"}, None, {"authorization": "Bearer x"}),
        ({"OTEL_EXPORTER_OTLP_LOGS_HEADERS": "tenant=logs", "OTEL_EXPORTER_OTLP_HEADERS": "tenant=all"}, None, None),
        ({}, {"Authorization": "Bearer y", "Tenant": "b"}, {"authorization": "Bearer y", "tenant": "b"}),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "tenant=a"}, {"tenant": "b"}, {"tenant": "b"}),
    ],
)
def test_headers_are_sent(
    *,
    receiver: Receiver,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    headers: dict[str, str] | None,
    expected: dict[str, str] | None,
) -> None:
    """The argument overrides the variable of the signal, which overrides the general variable."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    pipeline = start(headers=headers)
    monitel.emit("event")
    assert pipeline.force_flush(60)
    assert (expected or {"tenant": "logs"}).items() <= receiver.of("logs")[0].headers.items()
    assert (expected or {"tenant": "all"}).items() <= receiver.of("metrics")[0].headers.items()


def test_token_is_only_in_the_request(
    *, receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token is not in the spool, in rejected requests, in a repr, in the log or in the last line."""
    pipeline = start(headers={"authorization": f"Bearer {TOKEN}"})
    for status in (400, 401, 503):
        receiver.answer("logs", Answer(status))
        monitel.emit("event")
        pipeline.force_flush(0.1)
    receiver.rule(lambda _request: Answer(503))
    monitel.emit("event")
    pipeline.force_flush(0.1)
    pipeline.shutdown()
    assert TOKEN in receiver.of("logs")[0].headers["authorization"]
    kept = [path.read_bytes() for path in Path(pipeline.spool_dir).rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert all(TOKEN.encode() not in each for each in kept)
    output = caplog.text + capsys.readouterr().err + repr(vars(pipeline))
    assert TOKEN not in output + repr(list(Spool(Path(pipeline.spool_dir)).peek()))


def test_password_in_the_address_is_not_logged(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The warning about an unreachable endpoint shows its address without user and password."""
    pipeline = start(endpoint=f"http://user:{TOKEN}@127.0.0.1:9")
    monitel.emit("event")
    assert not pipeline.force_flush(0.2)
    pipeline.shutdown()
    assert "127.0.0.1:9" in caplog.text
    assert TOKEN not in caplog.text


def test_password_in_an_invalid_address_is_not_in_the_exception() -> None:
    """The message names the problem without the address."""
    with pytest.raises(ValueError, match="must begin with http") as raised:
        monitel_otlp.configure(endpoint=f"htp://user:{TOKEN}@host")
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("compression", ["gzip", "deflate", "none"])
def test_compression_is_honoured(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    """The variable of a signal applies to that signal only, including its retries."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", compression)
    pipeline = start()
    receiver.answer("logs", Answer(503))
    monitel.emit("event")
    assert pipeline.force_flush(60)
    expected = {"none": None}.get(compression, compression)
    assert [expected] * 2 == [request.headers.get("content-encoding") for request in receiver.of("logs")]
    assert None is receiver.of("metrics")[0].headers.get("content-encoding")
    assert ["event"] == receiver.record_names()


def test_endpoint_is_read_from_the_environment(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of a single signal is used as it is; the path is appended to the general address."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{receiver.url}/base/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"{receiver.url}/own/logs")
    pipeline = start(endpoint=None)
    monitel.emit("event")
    assert pipeline.force_flush(60)
    assert {"/base/v1/metrics", "/own/logs"} == {request.path for request in receiver.requests}


@pytest.mark.parametrize("suffix", ["", "/", "/otlp", "/otlp/"])
def test_argument_is_a_base_url(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """The path of the signal is appended, and the argument overrides all variables."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:9/other")
    pipeline = start(endpoint=receiver.url + suffix)
    monitel.emit("event")
    assert pipeline.force_flush(60)
    base = suffix.rstrip("/")
    assert {f"{base}/v1/metrics", f"{base}/v1/logs"} == {request.path for request in receiver.requests}


def test_service_name_and_attributes_are_in_the_resource(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments override OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "variable")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a,run=1")
    for arguments in ({}, {"service_name": "argument", "resource_attributes": {"run": 2}}):
        assert start(**arguments).force_flush(60)
    first, second = (receiver.points("monitel.queue.size")[index].resource for index in (0, -1))
    assert {"service.name": "variable", "team": "a", "run": "1"}.items() <= first.items()
    assert {"service.name": "argument", "team": "a", "run": 2}.items() <= second.items()


def test_user_without_a_home_has_a_spool(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The spool is in the current folder, because a container's user may have neither a name nor HOME."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert tmp_path / "monitel-runs" == Path(start(spool_dir=None).spool_dir).parent


def test_bytes_that_are_not_utf8_are_escaped(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A variable may hold any bytes; a lone surrogate is escaped without a warning."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "tr\udce4in")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=\udcff,gr\udcfcn=1")
    assert start().force_flush(60)
    resource = receiver.points("monitel.queue.size")[0].resource
    assert {"service.name": "tr\\udce4in", "team": "\\udcff", "gr\\udcfcn": "1"}.items() <= resource.items()
    assert "" == caplog.text


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"endpoint": 4318}, TypeError, ["endpoint", "'http://localhost:4318'", "int"]),
        ({"endpoint": "localhost:4318"}, ValueError, ["endpoint", "must begin with http://"]),
        ({"endpoint": ""}, ValueError, ["endpoint", "must begin with http://"]),
        ({"endpoint": "http://"}, ValueError, ["endpoint", "host"]),
        ({"endpoint": "http://host:port"}, ValueError, ["endpoint", "port must be a number"]),
        ({"endpoint": "http://host:99999"}, ValueError, ["endpoint", "from 1 to 65535"]),
        ({"endpoint": "http://collector..example"}, ValueError, ["endpoint", "not a valid name"]),
        ({"endpoint": "http://user:a/b@host"}, ValueError, ["endpoint", "'@' after the host", "%2F"]),
        ({"endpoint": "http://host:4318/v1?key=1"}, ValueError, ["endpoint", "query"]),
        ({"endpoint": "http://host:4318/v1/metrics"}, ValueError, ["endpoint", "/v1/..., which is appended"]),
        ({"endpoint": "http://host/otlp/v1/logs/"}, ValueError, ["endpoint", "/v1/..., which is appended"]),
        ({"headers": "a=b"}, TypeError, ["headers", "str"]),
        ({"headers": {"a": 1}}, TypeError, ["headers", "'a'"]),
        ({"headers": {"a": f"{TOKEN}\n"}}, ValueError, ["headers", "'a'"]),
        ({"headers": {"a b": TOKEN}}, ValueError, ["headers", "'a b'"]),
        ({"headers": {"a": f"{TOKEN}é\u4e00"}}, ValueError, ["headers", "'a'"]),
        ({"export_interval": "5"}, TypeError, ["export_interval", "seconds", "str"]),
        ({"export_interval": True}, TypeError, ["export_interval", "bool"]),
        ({"export_interval": 0}, ValueError, ["export_interval", "0"]),
        ({"export_interval": -1.0}, ValueError, ["export_interval", "-1.0"]),
        ({"export_interval": float("nan")}, ValueError, ["export_interval", "nan"]),
        ({"export_interval": 1e300}, ValueError, ["export_interval", "1e+300"]),
        ({"service_name": 5}, TypeError, ["service_name", "str", "int"]),
        ({"resource_attributes": [("a", 1)]}, TypeError, ["resource_attributes", "list"]),
        ({"resource_attributes": {"a": ...}}, TypeError, ["resource_attributes", "'a'"]),
        ({"resource_attributes": {1: "a"}}, TypeError, ["resource_attributes", "1"]),
        ({"resource_attributes": {"": "a"}}, ValueError, ["resource_attributes", "empty"]),
        ({"service_name": "a\ud800"}, ValueError, ["service_name", "UTF-8", "'a\\ud800'"]),
        ({"resource_attributes": {"a": "b\udce4"}}, ValueError, ["resource_attributes", "'a'", "UTF-8"]),
        ({"resource_attributes": {"a\udce4": "b"}}, ValueError, ["resource_attributes", "name", "UTF-8"]),
        ({"resource_attributes": {"a": 2**63}}, ValueError, ["resource_attributes", "'a'", "64 bits", str(2**63)]),
        ({"spool_dir": 5}, TypeError, ["spool_dir", "int"]),
        ({"spool_dir": __file__}, ValueError, ["spool_dir", __file__, "is a file"]),
        ({"spool_dir": f"{__file__}/runs"}, ValueError, ["spool_dir", f"'{__file__}' is a file"]),
        ({"rank_attribute": "no"}, TypeError, ["rank_attribute", "True or False", "'no'"]),
        ({"workers": 1}, TypeError, ["workers", "True or False", "1"]),
        ({"endpont": "http://host"}, TypeError, ["endpont"]),
    ],
    ids=str,
)
def test_invalid_argument_raises(arguments: dict[str, Any], error: type[Exception], words: list[str]) -> None:
    """The message has the given value (except for headers) and the allowed values; nothing is started."""
    with pytest.raises(error) as raised:
        monitel_otlp.configure(**arguments)
    assert [] == [word for word in words if word not in str(raised.value)]
    assert TOKEN not in str(raised.value)


def test_invalid_argument_does_not_end_the_running_pipeline(receiver: Receiver, start: Start) -> None:
    """After a typo in a notebook, the pipeline that was configured before still delivers."""
    pipeline = start()
    with pytest.raises(ValueError, match="endpoint"):
        monitel_otlp.configure(endpoint="typo")
    monitel.emit("event")
    assert pipeline.force_flush(60)
    assert ["event"] == receiver.record_names()


TRAIN = """\
with monitel_otlp.configure(spool_dir="spool"):
    monitel.emit("event")
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
print("trained")
"""


@pytest.mark.parametrize(
    "url", ["localhost:4318", "http://", "http://host:port", "not a url", "http://[::1", "ftp://host"]
)
def test_malformed_endpoint_sends_nothing_and_loses_nothing(train: Run, tmp_path: Path, url: str) -> None:
    """Training continues, everything is in the spool, and one line names the variable without its value."""
    ended = train(TRAIN, env={"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert "trained\n" == ended.stdout
    (folder,) = (tmp_path / "spool").iterdir()
    kept = [(request.signal, request.items) for request in Spool(folder).peek() if request.items]
    assert [("metrics", 1), ("logs", 1)] == kept
    warnings = [line for line in ended.stderr.splitlines() if "OTEL_EXPORTER_OTLP_ENDPOINT" in line]
    assert 1 == len(warnings), ended.stderr
    assert "the value is not shown" in warnings[0]
    assert str(folder) in ended.stderr


MALFORMED = {
    "OTEL_METRIC_EXPORT_INTERVAL": ["abc", "-5", "0", "nan", "inf", "1e300"],
    "OTEL_EXPORTER_OTLP_TIMEOUT": ["abc", "-1"],
    "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": ["abc"],
    "OTEL_EXPORTER_OTLP_COMPRESSION": ["brotli"],
    "OTEL_EXPORTER_OTLP_HEADERS": ["no-equals-sign"],
    "OTEL_EXPORTER_OTLP_PROTOCOL": ["pigeon"],
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": ["sometimes"],
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": ["sometimes"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in MALFORMED.items() for value in values])
def test_malformed_variable_does_not_end_training(receiver: Receiver, train: Run, name: str, value: str) -> None:
    """Everything is delivered with the default value, and one line reports the problem."""
    ended = train(TRAIN, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, name: value})
    assert "trained\n" == ended.stdout
    assert ([1], 1) == (receiver.values("loss.count"), len(receiver.records("event")))
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("monitel: ")]
    assert 1 == len(lines), ended.stderr


# OTEL_SPAN_*_LIMIT is missing here, because the SDK raises for it during its import.
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_METRIC_EXPORT_TIMEOUT", "abc"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "dice"),
        ("OTEL_RESOURCE_ATTRIBUTES", "nonsense"),
        ("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "no-such-detector"),
        ("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", "many"),
        ("OTEL_TRACES_SAMPLER", "dice"),
    ],
)
def test_malformed_variable_of_the_sdk_does_not_end_training(
    receiver: Receiver, train: Run, name: str, value: str
) -> None:
    """For some of these variables the SDK's classes raise."""
    ended = train(TRAIN, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, name: value})
    assert "trained\n" == ended.stdout
    assert ([1], 1) == (receiver.values("loss.count"), len(receiver.records("event")))


def test_no_other_variable_is_needed(receiver: Receiver, train: Run) -> None:
    """With only an endpoint, a run delivers everything and prints one line at its end."""
    ended = train(TRAIN, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert LastLine(1, 1, None, None, None, None) == last_line(ended.stderr)
    assert 1 == len(ended.stderr.splitlines())


GLOBALS = """\
from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider, set_logger_provider
from opentelemetry.sdk.metrics import MeterProvider

mine = MeterProvider()
if sys.argv[1] == "set":
    metrics.set_meter_provider(mine)
with monitel_otlp.configure() as pipeline:
    print((metrics.get_meter_provider() is mine) == (sys.argv[1] == "set"))
    print((metrics.get_meter_provider() is pipeline.meter_provider) == (sys.argv[1] == "unset"))
    print(get_logger_provider() is pipeline.logger_provider, trace.get_tracer_provider() is pipeline.tracer_provider)
"""


@pytest.mark.parametrize("before", ["set", "unset"])
def test_providers_become_global_if_none_is_set(receiver: Receiver, train: Run, before: str) -> None:
    """A provider that the application has set before stays."""
    ended = train(GLOBALS, before, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert "True\nTrue\nTrue True\n" == ended.stdout


def test_environment_is_not_changed(start: Start) -> None:
    """Other libraries read the same variables, so they must not change."""
    before = dict(os.environ)
    start()
    assert before == dict(os.environ)
