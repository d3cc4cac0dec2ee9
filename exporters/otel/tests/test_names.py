"""Names of metrics: cleaned, unique as Prometheus stores them, stable, and independent of threads."""

from __future__ import annotations

import re
import sys
from threading import Barrier, Thread
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

import monitel
from monitel import COUNT, MEAN, SUM
from monitel_otel import NAMES, MetricNames

if TYPE_CHECKING:
    import pytest

WAITS = {".wait.time": True, ".wait.count": True, ".wait.active": False, ".wait.max": False}


def stored(metric: str, *, monotonic: bool) -> str:
    """Return the name in Prometheus of a metric without unit, written down again from the rules of its translation."""
    words = [word for word in re.split("[^a-z0-9]+", metric.lower()) if word]
    if monotonic:
        words = [word for word in words if word != "total"] + ["total"]
    return "_".join(words)


sources = st.tuples(
    st.sampled_from(["Stat", "number", "counter", "wait"]),
    st.sampled_from(
        ["x", "X", "x.", "x_2", "x.count", "x_count", "x.wait", "x.wait.count", "x.counter", "x number", "y"]
    ),
)


@given(st.lists(sources, min_size=2, max_size=30))
def test_no_two_sources_have_one_name_in_prometheus(found: list[tuple[str, str]]) -> None:
    """In any order; a source that comes again has the same name."""
    names = MetricNames()
    owners: dict[str, tuple[str, str]] = {}
    given_names: dict[tuple[str, str], str] = {}
    for kind, name in found:
        metrics: dict[str, bool]
        if kind == "Stat":
            base, metrics = names.of_stat(name, (MEAN, COUNT, SUM)), {".mean": False, ".count": True, ".sum": True}
        elif kind == "number":
            base, metrics = names.of_number(name), {"": False}
        elif kind == "counter":
            base, metrics = names.of_counter(name), {"": True}
        else:
            base, metrics = names.of_wait_counter(name), WAITS
        assert base == given_names.setdefault((kind, name), base)
        for suffix, monotonic in metrics.items():
            for metric in {stored(base + suffix, monotonic=False), stored(base + suffix, monotonic=monotonic)}:
                assert (kind, name) == owners.setdefault(metric, (kind, name)), metric


def test_first_source_keeps_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """The warning has both sources, the name and the name in use, once."""
    for _ in range(2):
        assert ("x", "x.counter") == (NAMES.of_number("x"), NAMES.of_counter("x"))
    expected = (
        "logged number 'x' and counter 'x' have the same metric name 'x': counter 'x' is sent as 'x.counter'. "
        "Rename one of them."
    )
    assert [expected] == [record.getMessage() for record in caplog.records]


def test_new_name_is_free_as_well() -> None:
    """A name with a kind, or with a number, may be in use already."""
    assert ["x", "x.counter", "x.counter_2"] == [
        NAMES.of_number("x"),
        NAMES.of_number("x.counter"),
        NAMES.of_counter("x"),
    ]


def test_sources_without_a_common_metric_keep_their_names(caplog: pytest.LogCaptureFixture) -> None:
    """A Stat, a number and a wait counter may have one name."""
    found = [NAMES.of_stat("x", (MEAN, COUNT)), NAMES.of_number("x"), NAMES.of_wait_counter("x")]
    assert (["x"] * 3, []) == (found, caplog.records)


def test_threads_get_the_same_names() -> None:
    """Sources that many threads use for the first time at once have one name each, all different."""
    names = MetricNames()
    barrier = Barrier(8)
    found: list[list[str]] = [[] for _ in range(8)]

    def run(mine: list[str]) -> None:
        barrier.wait(20)
        for number in range(200):
            mine += [names.of_number(f"x{number}"), names.of_counter(f"x{number}"), names.of_counter(f"X{number}")]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=run, args=[mine], daemon=True) for mine in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    finally:
        sys.setswitchinterval(before)
    assert [found[0]] * 8 == found
    assert 600 == len(set(found[0]))


def test_long_names_have_room_for_everything() -> None:
    """OpenTelemetry allows 255 characters."""
    for name in ("x" * 300, "X" * 300):
        assert len(NAMES.of_wait_counter(name) + ".wait.active") <= 255
        assert len(NAMES.of_stat(name, tuple(monitel.Aggregation)) + ".histogram") <= 255
