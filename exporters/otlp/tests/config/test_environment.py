"""Any text in any variable: configure() works, training goes on, what was logged is kept, and no token is told."""

from __future__ import annotations

import io
import logging
import os
import socket
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import monitel
import monitel_otlp
from monitel_otlp.config.launcher import VARIABLES, launch_attributes
from monitel_otlp.config.settings import resolve
from monitel_otlp.spool.spool import Spool

from .inbox import points_of, records_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel_otlp.request import FrozenRequest

TOKEN = "sesame-4711"

OF_SIGNALS = [
    *("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "INSECURE"),
    *("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"),
]
EXPORTER = [
    f"OTEL_EXPORTER_OTLP_{signal}{name}" for name in OF_SIGNALS for signal in ("", "METRICS_", "LOGS_", "TRACES_")
]
SDK = [
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
    "OTEL_METRICS_EXEMPLAR_FILTER",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BLRP_SCHEDULE_DELAY",
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED",
]
LAUNCHER = [name for names in VARIABLES.values() for name in names]

any_bytes = st.binary(max_size=40).map(lambda found: os.fsdecode(found.replace(b"\0", b"")))  # what a variable can hold
any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
numbers = st.one_of(st.integers(), st.floats(), st.integers(0, 10), st.decimals()).map(str)
telling = st.sampled_from(
    [
        *(
            "",
            " ",
            "\t\n",
            "true",
            "TRUE",
            "false",
            "none",
            "None",
            "gzip",
            "http/protobuf",
            "http/json",
            "grpc",
            "delta",
        ),
        *(
            "a=b",
            "a=b,c",
            "=",
            "a=",
            ",,",
            "a=%ff",
            "a=%",
            "always_off",
            "parentbased_traceidratio",
            "*",
            "process,monitel",
        ),
        *("1_000", "١٢", "²", "1e999", "-0", "0x10", "9" * 5000, "x" * 20_000, "/", "/dev/null", ".", "~"),
    ]
)
texts = telling | numbers | any_text | any_bytes
hosts = st.sampled_from(
    ["127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:9", f"user:{TOKEN}@127.0.0.1:9", "[::1", "127.0.0.1:x"]
)
paths = st.sampled_from(["", "/", "/v1/metrics", f"/?key={TOKEN}", "//", "/ä \r\nx"])
urls = st.tuples(st.sampled_from(["http://", "https://", "HTTP://", "htp://", ""]), hosts, paths).map("".join)
secrets = st.tuples(texts, st.sampled_from(["authorization=", "a=Bearer ", "=", ""]), st.just(TOKEN), texts).map(
    "".join
)


def values(name: str) -> st.SearchStrategy[str]:
    """What may be in a variable: text of any kind, and what looks like a value of it."""
    if name.endswith("ENDPOINT"):
        return urls | texts
    if name == "OTEL_RESOURCE_ATTRIBUTES":
        return st.lists(st.tuples(texts, st.just("="), texts).map("".join), max_size=3).map(",".join) | texts
    return secrets | texts if name.endswith("HEADERS") else texts


often = [
    *(f"OTEL_EXPORTER_OTLP_{name}" for name in ("ENDPOINT", "HEADERS", "TIMEOUT", "LOGS_ENDPOINT", "PROTOCOL")),
    *("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_RESOURCE_ATTRIBUTES", "RANK"),
]
environments = st.tuples(
    st.fixed_dictionaries({}, optional={name: values(name) for name in often}),
    st.sets(st.sampled_from([*EXPORTER, *SDK, *LAUNCHER]), max_size=4).flatmap(
        lambda names: st.fixed_dictionaries({name: values(name) for name in sorted(names)})
    ),
).map(lambda parts: {**parts[0], **parts[1]})
fuzzed = settings(
    max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve no name: what cannot be sent is spooled."""

    def unresolved(*_arguments: object, **_more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


def trained(variables: Mapping[str, str]) -> tuple[str, list[FrozenRequest]]:
    """Configure, log a window and an event, end: all that was said and can be shown, and what was kept."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    with (
        tempfile.TemporaryDirectory() as root,
        pytest.MonkeyPatch.context() as patch,
        redirect_stderr(said),
    ):
        for name, value in variables.items():
            patch.setenv(name, value)
        logging.getLogger().addHandler(handler)
        try:
            pipeline = monitel_otlp.configure(spool_dir=root, export_interval=3600.0)
            stat = monitel.Stat("loss", [monitel.COUNT], 60.0)
            stat.add(1)
            stat.flush()
            monitel.emit("epoch")
            pipeline.shutdown(0.5)
            said.write(repr(pipeline) + repr(vars(pipeline)) + repr(pipeline.endpoints) + repr(pipeline.dropped))
        finally:
            logging.getLogger().removeHandler(handler)
        kept = list(Spool(Path(pipeline.spool_dir)).peek())
    return said.getvalue(), kept


@pytest.mark.stress  # hypothesis takes random numbers that another test's thread draws for the strategies' own
@fuzzed
@given(environments)
@example({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1", "OTEL_METRIC_EXPORT_INTERVAL": "nan"})
@example({"OTEL_EXPORTER_OTLP_ENDPOINT": f"htp://user:{TOKEN}@127.0.0.1:x/?key={TOKEN}"})
@example({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_HEADERS": f"{TOKEN}"})
@example({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_HEADERS": f"a={TOKEN}\n"})
@example({"OTEL_SERVICE_NAME": "\udce4", "OTEL_RESOURCE_ATTRIBUTES": "\udce4=\udce4"})
def test_no_variable_ends_training_or_loses_a_window(variables: dict[str, str]) -> None:
    """Window and event are in the spool, whatever the variables say; no token is in what is said."""
    if "grpc" in {value.strip() for value in variables.values()}:  # its resolver is no Python: let it know the host
        variables = {name: value for name, value in variables.items() if not name.endswith("ENDPOINT")}
    said, kept = trained(variables)
    windows = [point for request in kept if request.signal == "metrics" for point in points_of(request.message())]
    events = [record for request in kept if request.signal == "logs" for record in records_of(request.message())]
    assert TOKEN not in said
    assert "UnicodeEncodeError" not in said  # of the encoder, with each request
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        assert [] == kept
        return
    assert {"loss.count", "loss"} & {point.metric for point in windows}
    assert ["epoch"] == [record.name for record in events]
    resource = windows[0].resource
    name = variables.get("OTEL_SERVICE_NAME", "")
    assert name.encode(errors="backslashreplace").decode().strip() in resource["service.name"]
    assert {key: resource[key] for key in launched(variables)} == launched(variables)


def launched(variables: dict[str, str]) -> dict[str, str | int]:
    """What the launcher says, read once more."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return launch_attributes()


@fuzzed
@given(any_text | any_bytes | numbers | telling, st.sampled_from(LAUNCHER))
def test_a_launchers_variable_is_a_number_or_nothing(value: str, name: str) -> None:
    """But for the run's id, which is any text that UTF-8 can hold."""
    for attribute, found in launched({name: value}).items():
        assert name in VARIABLES[attribute]
        if attribute == "training.run.id":
            assert str(found).encode()
        else:
            assert isinstance(found, int)
            assert 0 <= found < 2**63


@fuzzed
@given(environments, texts | urls, texts, st.dictionaries(texts, texts | st.just(TOKEN), max_size=2))
def test_only_arguments_raise(variables: dict[str, str], endpoint: str, protocol: str, headers: dict[str, str]) -> None:
    """What an argument may not be is said without the token that it may hold; no variable has a part in it."""
    outcomes = []
    for given_variables in ({}, variables):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in given_variables.items():
                patch.setenv(name, value)
            try:
                settings = resolve(endpoint, headers, protocol=protocol or None)
            except ValueError as error:
                outcomes.append(str(error))
            else:
                outcomes.append("")
                assert TOKEN not in repr(settings)
    assert outcomes[0] == outcomes[1]
    assert TOKEN not in outcomes[0].replace(repr(protocol), "")
