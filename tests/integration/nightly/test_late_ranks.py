"""Hidden late ranks in real jobs of two to eight ranks: the shipped rules name rank, stage and delay."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.integration.conftest import DEADLINE, ROOT
from tests.integration.nightly.late_measurements import Measured, measure
from tests.integration.nightly.late_rows import ROWS, Row
from tests.integration.stack.filling import Store, store

from monitel.console import lateness

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

EXAMPLE = ROOT / "docs" / "examples" / "train_ddp.py"
OFF = 0.15  # by which a lateness may be off
LEAST = 0.003  # seconds that may be named where nothing is late
STEPS = 100  # of the example, of about 140 ms


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[Row, Measured]:
    folder = tmp_path_factory.mktemp("rows")
    worlds = sorted({row.ranks for row in ROWS})
    return {each.row: each for ranks in worlds for each in measure(ranks, folder / str(ranks))}


def title(row: Row) -> str:
    return f"{row.ranks} ranks, {row}"


def names(row: Row) -> list[tuple[int, str]]:
    """The ranks and stages of a row that have to be named, the latest first."""
    wanted = [each for each in row.delays if each not in row.hidden]
    return [(each.rank, each.stage) for each in sorted(wanted, key=lambda each: -each.mean)]


def named(found: Measured) -> dict[tuple[int, str], float]:
    """The suspects of a row, the latest first."""
    return {(rank, stage): seconds for seconds, rank, stage in lateness.suspects(found.times)}


def check_lateness(found: Measured) -> None:
    """Check the lateness of each delay: it is the delay, or what the job's own clock shows if the machine was busy."""
    late = lateness.stage_late(found.times)
    clocked = lateness.stage_late(found.clocked)
    for delay in found.row.delays:
        own = clocked[delay.rank, delay.stage]
        assert late[delay.rank, delay.stage] == pytest.approx(delay.mean if found.quiet else own, rel=OFF)


@pytest.mark.parametrize("row", [row for row in ROWS if len(row.delays) == 1], ids=title)
def test_one_late_rank_is_the_first_suspect(measured: dict[Row, Measured], row: Row) -> None:
    """The largest suspect is the late rank, in the stage of its delay, by the delay."""
    found = measured[row]
    check_lateness(found)
    assert names(row) == [*named(found)][:1] or not found.quiet


@pytest.mark.parametrize("row", [row for row in ROWS if len(row.delays) == 2], ids=title)
def test_two_delays_are_the_first_suspects(measured: dict[Row, Measured], row: Row) -> None:
    """Both delays are named with their times, except one that the median rank has too."""
    found, wanted = measured[row], names(row)
    suspects = named(found)
    check_lateness(found)
    assert {*wanted} == {*[*suspects][: len(wanted)]} or not found.quiet
    assert not {(each.rank, each.stage) for each in row.hidden} & suspects.keys() or not found.quiet


@pytest.mark.parametrize("row", [row for row in ROWS if not row.delays], ids=title)
def test_nobody_is_named_without_a_delay(measured: dict[Row, Measured], row: Row) -> None:
    """Chance names no rank above 3 ms."""
    found = measured[row]
    clocked = lateness.stage_late(found.clocked)
    known = 0.0 if found.quiet else max(clocked.values())
    assert max(named(found).values(), default=0.0) < LEAST + known


@pytest.mark.parametrize("row", ROWS, ids=title)
def test_exposed_times_add_up_to_the_cycle(measured: dict[Row, Measured], row: Row) -> None:
    """The sum of the exposed times is the duration of a cycle by the job's own clock."""
    found = measured[row]
    assert {row.cycles} == found.counts
    assert sum(lateness.exposed(found.times).values()) == pytest.approx(found.seconds, rel=0.02)


@pytest.fixture
def prometheus(backends: Path, tmp_path: Path) -> Iterator[Store]:
    """Prometheus with the shipped rules, sixty times as fast."""
    with store(backends, tmp_path) as prometheus:
        yield prometheus


def recorded(prometheus: Store, rule: str, *labels: str) -> dict[tuple[str, ...], float]:
    found = prometheus.query(f"last_over_time({rule}[1h])")
    values = {tuple(each["metric"].get(label, "") for label in labels): float(each["value"][1]) for each in found}
    assert len(values) == len(found)
    return values


def test_example_is_explained(prometheus: Store, tmp_path: Path) -> None:
    """``torchrun train_ddp.py --late data:2:30ms`` prints a query, which returns rank 2, ``data``, 30 ms."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))}
    exports = {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{prometheus.url}/api/v1/otlp/v1/metrics",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",  # the rules are sixty times as fast, too
    }
    done = subprocess.run(
        [*torchrun, EXAMPLE, "--late", "data:2:30ms", "--steps", str(STEPS)],
        env={**clean, **exports, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert "injected: rank 2 is late in data by 30 ms in every step\n" in done.stdout
    (selector,) = re.findall(r"^    sort_desc\((training:suspect:seconds\{.*\})\)$", done.stdout, re.MULTILINE)
    first, *_ = prometheus.query(f"sort_desc(quantile_over_time(0.5, {selector}[1h]))")
    assert ("2", "data") == (first["metric"]["training_rank"], first["metric"]["training_stage"])
    assert float(first["value"][1]) == pytest.approx(0.030, rel=OFF)
