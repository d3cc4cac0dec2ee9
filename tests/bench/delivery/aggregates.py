"""Rules and dashboards of the stack over 10,000 ranks in a real Prometheus (see MONITEL_BACKENDS).

The windows of all ranks are encoded by the pipeline's own encoders, in a request for each rank, and sent by OTLP. They
end at the last minutes and at the next ones, so that the rules of the stack read them as those of a job that runs. Each
rank has the six stages of a step, of which one is late on one rank, and Stats with torch's six aggregations. The
variables MONITEL_BENCH_RANKS, MONITEL_BENCH_STATS, MONITEL_BENCH_AGGREGATIONS and MONITEL_BENCH_WINDOWS choose other
sizes, without limits.
"""

from __future__ import annotations

import math
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from processes import available_bytes, cpu_ns, resident_bytes
from row import Row

import monitel
from monitel.stats.definition import TORCHS, StatDefinition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.integration.stack.filling import Store

_ROOT = Path(__file__).parents[3]
_DEFAULTS = {"RANKS": 10_000, "STATS": 8, "AGGREGATIONS": 6, "WINDOWS": 7}
_RANKS, _STATS, _AGGREGATIONS, _WINDOWS = (
    int(os.environ.get(f"MONITEL_BENCH_{name}", size)) for name, size in _DEFAULTS.items()
)
_CHECKED = [_RANKS, _STATS, _AGGREGATIONS, _WINDOWS] == [*_DEFAULTS.values()]
_WINDOW_NS = 60_000_000_000
_LEAD_NS = 10_000 * _WINDOWS * _RANKS * (_STATS * _AGGREGATIONS + 6)  # while the windows are sent: 10 us for each point
_STEPS = 100  # in a window
_STAGES = {"optimizer": 0.01, "other": 0.005, "data": 0.01, "forward": 0.025, "backward": 0.05}  # seconds
_LATE_RANK, _LATE_STAGE, _DELAY = _RANKS // 3, "data", 0.03
_NAMES = ("loss", "step.time", "gradient.norm")
_BY_RANK = 'quantile(0.5, step_time_mean_seconds{service_name="train"})'
_RECORDED = 'training:ranks:means_median{service_name="train", stat="step_time"}'
_QUERIES = 3  # times that each is measured
_WAIT = 300.0  # seconds for rules
_INTERVAL = 30.0  # seconds between two evaluations, in the files of the stack
_BYTES_PER_SERIES = 4100  # in the steady state
_RULES = 30  # series of each rank that rules store


def definition(name: str, aggregations: Sequence[monitel.Aggregation], **attributes: str | int) -> StatDefinition:
    """Return the definition of a Stat of times, or of numbers."""
    unit = "s" if name.endswith(("time", "duration")) else ""
    return StatDefinition(name, tuple(aggregations), unit, "", MappingProxyType(attributes), monotonic=unit == "s")


def definitions() -> list[StatDefinition]:
    """Return the Stats of one rank besides the stages."""
    aggregations = [each for each in monitel.Aggregation if each in TORCHS][:_AGGREGATIONS]
    named = [definition(name, aggregations) for name in _NAMES[:_STATS]]
    layers = range(_STATS - len(named))
    return named + [definition("layer.gradient.norm", aggregations, layer=layer) for layer in layers]


def stage_times() -> list[dict[str, float]]:
    """Return the mean times of the stages of each rank in a synchronous job."""
    rng = random.Random(0)
    work = [{stage: mean * rng.uniform(0.98, 1.02) for stage, mean in _STAGES.items()} for _ in range(_RANKS)]
    work[_LATE_RANK][_LATE_STAGE] += _DELAY
    cycle = max(sum(each.values()) for each in work)
    return [{**each, "sync": cycle - sum(each.values())} for each in work]


def windows(rank: int, times: dict[str, float], begin_ns: int) -> Iterator[monitel.Window]:
    """Yield the windows of a rank, in ascending order."""
    rng = random.Random(rank)
    cycle = sum(times.values())
    stages = [
        (definition("training.stage.duration", [monitel.MEAN], **{"training.stage": each}), each) for each in times
    ]
    stats = definitions()
    for number in range(_WINDOWS):
        start_ns = begin_ns + number * _WINDOW_NS
        bounds = start_ns, start_ns + _WINDOW_NS, _STEPS
        for stat, stage in stages:
            mean = times[stage]
            yield monitel.Window(stat, *bounds, _STEPS * mean, mean, mean, mean, 0, None, None)
        for stat in stats:
            mean = cycle if stat.name == "step.time" else rng.uniform(0.9, 1.1)
            yield monitel.Window(stat, *bounds, _STEPS * mean, 0.9 * mean, 1.1 * mean, mean, 0, None, None)


def fill(store: Store, begin_ns: int) -> None:
    """Send the windows of all ranks."""
    from tests.integration.nightly.rank_requests import RankRequests, send

    times = stage_times()

    def bodies(ranks: range) -> Iterator[bytes]:
        for rank in ranks:
            encoder = RankRequests(rank, _RANKS, "run-7", begin_ns)
            yield from encoder.encode(windows(rank, times[rank], begin_ns))

    with ThreadPoolExecutor() as pool:
        for sent in [pool.submit(send, store.url, bodies(range(each, _RANKS, 2))) for each in range(2)]:
            sent.result()


def wait_for_rules(store: Store, pid: int) -> tuple[dict[str, float], float]:
    """Wait until the rules have differences over a minute.

    Returns:
        The seconds that each group takes, and the CPU time in ns that Prometheus takes to evaluate all of them.
    """
    deadline, pause = time.monotonic() + _WAIT, Event()
    while not (store.query("training:ranks:samples_count") and store.query("training:suspect:seconds")):
        if time.monotonic() > deadline:
            raise SystemExit(f"the rules have no results after {_WAIT:g} s: {store.get('rules')}")
        pause.wait(1)
    groups: list[dict[str, Any]] = []
    before = cpu_ns(pid)
    for _ in range(2):  # two evaluations: the longer one counts
        pause.wait(_INTERVAL)
        groups += store.get("rules")["groups"]
    cpu = (cpu_ns(pid) - before) / 2
    if errors := [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")]:
        raise SystemExit(f"rules fail: {errors}")
    names = dict.fromkeys(each["name"] for each in groups)
    return {name: max(float(each["evaluationTime"]) for each in groups if each["name"] == name) for name in names}, cpu


def query_ns(store: Store, expression: str) -> float:
    """Return the shortest time of a query over the last five minutes, every 15 s as a dashboard asks it."""
    found = math.inf
    for _ in range(_QUERIES):
        now = time.time()
        begin = time.perf_counter_ns()
        store.get("query_range", query=expression, start=str(now - 300), end=str(now), step="15")
        found = min(found, time.perf_counter_ns() - begin)
    return found


def put(what: str, value: float, unit: str = "ns", most: float | None = None) -> None:
    """Print a row, with its limit at the default size."""
    Row(what, value, unit, most=most if _CHECKED else None).put()


def measure(store: Store, pid: int) -> None:
    """Fill a Prometheus, wait for its rules, and ask what the dashboards ask."""
    from tests.integration.stack.boards import board

    who = f"{_RANKS:,} ranks"
    begin_ns = ((time.time_ns() + _LEAD_NS) // _WINDOW_NS - 1) * _WINDOW_NS
    began = time.perf_counter_ns()
    fill(store, begin_ns)
    put(f"{who}: sending {_WINDOWS} windows of each Stat", time.perf_counter_ns() - began)
    took, cpu = wait_for_rules(store, pid)
    put(f"{who}: CPU of Prometheus for all rules, once", cpu, most=15e9)
    for name, seconds in took.items():
        put(f"{who}: rules of the group {name}", 1e9 * seconds, most=1e9 * _INTERVAL)
    put(f"{who}: series, with those of rules", store.get("status/tsdb")["headStats"]["numSeries"], "", 1.5e6)
    for found in store.query("training:ranks:means_count"):
        if float(found["value"][1]) != _RANKS:
            raise SystemExit(f"the rules do not aggregate over all ranks: {found}")
    (suspect,) = store.query("topk(1, training:suspect:seconds)")
    if (suspect["metric"]["training_rank"], suspect["metric"]["training_stage"]) != (str(_LATE_RANK), _LATE_STAGE):
        raise SystemExit(f"the first suspect is {suspect}")
    put(f"{who}: lateness of the suspect, {1e3 * _DELAY:g} ms", 1e9 * float(suspect["value"][1]), most=1.02e9 * _DELAY)
    by_rank, recorded = query_ns(store, _BY_RANK), query_ns(store, _RECORDED)
    limit = 0.2 if _CHECKED else None
    row = Row(f"{who}: median of the ranks, recorded", recorded, peer="series of the ranks", most_ratio=limit)
    row.peer_value, row.ratio = by_rank, recorded / by_rank
    row.put()
    for name in ("ranks", "overview"):
        times = [query_ns(store, expression) for expression in dict.fromkeys(board(name, store).expressions())]
        put(f"{who}: board {name}, {len(times)} queries", sum(times), most=60e9)
        put(f"{who}: board {name}, slowest query", max(times), most=10e9)
    put(f"{who}: memory of Prometheus", resident_bytes(pid), "B", 6e9)


def main() -> None:
    """Measure with a Prometheus as the stack configures it."""
    folder = os.environ.get("MONITEL_BACKENDS")
    if folder is None:
        Row("rules and dashboards over 10,000 ranks (MONITEL_BACKENDS is not set)", None).put()
        return
    from tests.integration.conftest import COMPOSE, free_port, prometheus_command, running
    from tests.integration.stack.filling import Store

    needed = _BYTES_PER_SERIES * _RANKS * (_STATS * _AGGREGATIONS + 6 + _RULES)
    if needed > (free := available_bytes()):
        Row(f"rules and dashboards over {_RANKS:,} ranks ({needed / 1e9:.1f} GB of {free / 1e9:.1f} free)", None).put()
        return
    store = Store(f"http://127.0.0.1:{free_port()}")
    with tempfile.TemporaryDirectory() as place:
        command = prometheus_command(Path(folder), store.url, Path(place), COMPOSE / "prometheus.yml")
        with running(*command, log=Path(place, "log"), ready=f"{store.url}/-/ready") as process:
            measure(store, process.pid)


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    try:
        import monitel_otlp  # noqa: F401  only to see whether it is there
    except ImportError:
        Row("rules and dashboards over 10,000 ranks", None).put()
    else:
        main()
