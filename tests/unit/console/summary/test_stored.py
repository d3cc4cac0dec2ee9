"""The stored form of a report: complete, and safe to read whatever it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.summary.made_reports import LATE, report, totals

from monitel_otlp import Account
from monitel_otlp.ledger.run_time import RunTime
from monitel_otlp.summary.report import JobName, Report, Total
from monitel_otlp.summary.stored import LIMIT_BYTES, ReportError, decode, encode

FULL = report(
    2,
    job=JobName("team", "tr\u00e4in", "run-7", "boot 1 2"),
    attempt=3,
    world_size=8,
    first_step=500,
    last_step=899,
    steps=400,
    skipped=3,
    step_time=Total(399, 52.25),
    stages=(*totals(LATE[2]), *totals(LATE[2], group="first", device=True)),
    activities={"startup": 10**9, "step": 5 * 10**10},
    run_time=RunTime("run-7", {"step": 7, "down": 2}, 9, 2, 1, 10, ended=True),
    accounts={"metrics": Account(recorded=9, delivered=5, on_disk=1, dropped={"queue_full": 3})},
    spool_dir="/runs/\udc80",
    offline=True,
    stored=True,
    status="failed",
    death="killed by SIGKILL",
    step_ns=4 * 10**8,
    observed=True,
)


@pytest.mark.parametrize("made", [FULL, report()], ids=["full", "empty"])
def test_report_is_read_as_written(made: Report) -> None:
    """All fields come back, text that is not UTF-8 included."""
    assert made == decode(encode(made))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(json.loads(encode(FULL)))), _JSON)
def test_other_values_are_refused_or_read(name: str, value: Any) -> None:
    """Whatever a field holds, there is a report of the right types, or the documented error."""
    stored = json.loads(encode(FULL))
    stored[name] = value
    try:
        found = decode(json.dumps(stored).encode())
    except ReportError:
        return
    assert found == decode(encode(found))


@given(st.binary(max_size=50) | st.integers(0, len(encode(FULL)) - 1).map(lambda length: encode(FULL)[:length]))
def test_damaged_content_is_refused(content: bytes) -> None:
    """Cut off, or not JSON at all."""
    with pytest.raises(ReportError):
        decode(content)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b" " * (LIMIT_BYTES + 1),
        b"null",
        b'{"version":2}',
        b'{"version":true}',
        encode(FULL).replace(b"52.25", b"NaN"),
        encode(FULL).replace(b"52.25", b"1e999"),
        encode(FULL).replace(b'"rank":2', b'"rank":-2'),
        encode(FULL).replace(b'"rank":2', b'"rank":1e3'),
        encode(FULL).replace(b'"metrics":', b'"others":'),
    ],
)
def test_wrong_content_is_refused(content: bytes) -> None:
    """Nested too deeply, too long, of another version, with impossible numbers or signals."""
    with pytest.raises(ReportError):
        decode(content)
