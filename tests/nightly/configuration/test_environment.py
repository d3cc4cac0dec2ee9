"""Any text in any variable: ``configure()`` works, telemetry is kept, and no token is printed."""

import io
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.inbox import points_of, records_of
from tests.support.spools import cat

import monitel
import monitel_otlp
from monitel.process.launcher import VARIABLES

TOKEN = "sesame-4711"

OPTIONS = ("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "INSECURE", "CERTIFICATE", "CLIENT_KEY")
NAMES = [
    *(f"OTEL_EXPORTER_OTLP_{signal}{name}" for signal in ("", "METRICS_", "LOGS_", "TRACES_") for name in OPTIONS),
    *("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"),
    *("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRICS_EXEMPLAR_FILTER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"),
    *("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"),
    *("OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_BSP_MAX_QUEUE_SIZE"),
    *(name for names in VARIABLES.values() for name in names),
]
texts = st.one_of(
    st.sampled_from(
        [
            *("", " ", "true", "none", "gzip", "http/protobuf", "grpc", "delta"),
            *("a=b", "a=b,c", "=", ",,", "a=%ff", "*"),
            *("always_off", "parentbased_traceidratio", "process,monitel", "1_000", "\u0661\u0662", "1e999", "-0"),
            *("9" * 5000, "x" * 20_000, "/dev/null", "~"),
        ]
    ),
    st.one_of(st.integers(), st.floats(), st.decimals()).map(str),
    st.binary(max_size=40).map(lambda found: os.fsdecode(found.replace(b"\0", b""))),  # as a variable holds it
)
urls = st.tuples(
    st.sampled_from(["http://", "https://", "HTTP://", "htp://", ""]),
    st.sampled_from(["127.0.0.1:9", "[::1]", f"user:{TOKEN}@127.0.0.1:9", "[::1", "127.0.0.1:x"]),
    st.sampled_from(["", "/v1/metrics", f"/?key={TOKEN}", "//", "/\u00e4 \r\nx"]),
).map("".join)
headers = st.tuples(texts, st.sampled_from(["authorization=", "a=Bearer ", "="]), st.just(TOKEN), texts).map("".join)


def values(name: str) -> st.SearchStrategy[str]:
    """Return a strategy for a variable: any text, and text that resembles a valid value."""
    return texts | {"ENDPOINT": urls, "HEADERS": headers}.get(name.rpartition("_")[2], texts)


environments = st.lists(st.sampled_from(NAMES), max_size=6, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values(name) for name in names})
)


def record() -> None:
    monitel.stat("loss", [monitel.COUNT]).add(1)
    monitel.emit("epoch")


def trained(variables: Mapping[str, str]) -> tuple[str, list[tuple[str, Any]]]:
    """Run a pipeline with a window and an event; return its output with its repr, and the requests in its spool."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch, redirect_stderr(output):
        for name, value in variables.items():
            patch.setenv(name, value)
        logging.getLogger().addHandler(handler)
        try:
            pipeline = monitel_otlp.configure(spool_dir=root, export_interval=3600.0)
            record()  # in a frame that no traceback in the log keeps
            pipeline.shutdown(5.0)
            output.write(repr(pipeline) + repr(vars(pipeline)) + repr(pipeline.endpoints) + repr(pipeline.dropped))
        finally:
            logging.getLogger().removeHandler(handler)
        kept = cat(pipeline.spool_dir).requests
    return output.getvalue(), kept


@settings(max_examples=150)
@given(environments)
def test_no_variable_ends_training_or_loses_a_window(variables: dict[str, str]) -> None:
    """For any variables window and event are in the spool, and no token is in the output."""
    if "grpc" in {value.strip() for value in variables.values()}:  # gRPC has its own resolver, which needs a network
        variables = {name: value for name, value in variables.items() if not name.endswith("ENDPOINT")}
    output, kept = trained(variables)
    windows = [point for signal, message in kept if signal == "metrics" for point in points_of(message)]
    events = [record for signal, message in kept if signal == "logs" for record in records_of(message)]
    assert TOKEN not in output
    assert "UnicodeEncodeError" not in output  # the encoder would log it for each request
    assert {"loss.count", "loss"} & {point.metric for point in windows}
    assert ["epoch"] == [record.name for record in events]
    name = variables.get("OTEL_SERVICE_NAME", "")
    assert name.encode(errors="backslashreplace").decode().strip() in windows[0].resource["service.name"]
