"""Names of metrics: cleaned, unique as Prometheus stores them, stable, and independent of threads."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

import monitel
from monitel import COUNT, MEAN, SUM
from monitel.counter import first_of_names
from monitel_otel.names import MetricNames

WAITS = {
    ".wait.time": ("s", True),
    ".wait.count": ("{wait}", True),
    ".wait.active": ("{wait}", False),
    ".wait.max": ("s", False),
}
UNITS = {"s": "seconds", "By": "bytes"}


def stored(metric: str, unit: str, *, monotonic: bool) -> str:
    """Return the name of a metric in Prometheus, written down again from the rules of its translation."""
    words = [word for word in re.split("[^a-z0-9]+", metric.lower()) if word]
    if unit in UNITS and UNITS[unit] not in words:
        words.append(UNITS[unit])
    if monotonic:
        words = [word for word in words if word != "total"] + ["total"]
    elif unit == "1":
        words = [word for word in words if word != "ratio"] + ["ratio"]
    return "_".join(words)


NAMES_OF_SOURCES = (
    *("x", "X.", "x_2", "x number", "x.count", "x.wait", "x.wait.count", "x.counter", "x.total", "x.sum.total"),
    *("é", "e", "É", "λ", "損失", "損", "u640d", "🔥", "\0", "*", "x" * 300, "x" * 301),
    *("x.bytes", "x_bytes_total", "x.total.bytes", "x.mean.seconds", "x.wait.max.seconds", "x.mean.ratio"),
)
sources = st.tuples(
    st.sampled_from(["Stat", "monotonic Stat", "number", "counter", "wait"]),
    st.sampled_from(NAMES_OF_SOURCES),
    st.sampled_from(["", "s", "By", "1"]),
)


@settings(max_examples=150)
@given(st.lists(sources, min_size=2, max_size=30))
def test_no_two_sources_have_one_name_in_prometheus(found: list[tuple[str, str, str]]) -> None:
    """In any order and with any units; a source that comes again has the same name."""
    names = MetricNames()
    owners: dict[str, tuple[str, str]] = {}
    given_names: dict[tuple[str, ...], str] = {}
    for kind, name, unit in found:
        source = kind.split()[-1], name
        if source[0] == "Stat":
            monotonic = kind != "Stat"
            base, _ = names.of_stat(monitel.StatDefinition(name, (MEAN, COUNT, SUM), unit, "", {}, monotonic))
            metrics = {".mean": (unit, False), ".count": ("{sample}", True), ".sum": (unit, monotonic)}
        elif kind == "number":
            base, metrics = names.of("logged number", name), {"": ("", False)}
        elif kind == "counter":
            chosen = monitel.counter(name, unit=unit).unit if name not in first_of_names() else None
            base, metrics = (
                names.of("counter", name),
                {"": (first_of_names()[name].unit if chosen is None else chosen, True)},
            )
        else:
            base, metrics = names.of("wait counter", name), WAITS
        assert base == given_names.setdefault((kind, name, unit if source[0] == "Stat" else ""), base)
        for suffix, (metric_unit, monotonic) in metrics.items():
            metric = base + suffix
            for key in {stored(metric, "", monotonic=False), stored(metric, metric_unit, monotonic=monotonic)}:
                assert source == owners.setdefault(key, source), key
