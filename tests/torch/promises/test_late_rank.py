"""In a real job by DistributedDataParallel the late rank and its stage are named, and the others wait in ``sync``."""

import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from tests.support.paths import EXAMPLES
from tests.support.scripts import Run
from tests.support.spools import cat

TRAIN = EXAMPLES / "train_ddp.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LATE = 0.200  # seconds, of steps of 23 ms
STAGES = {"optimizer", "other", "data", "forward", "backward", "sync"}


def stages(folder: Path) -> dict[int, dict[str, float]]:
    """Return the median of the windows' means of each stage in seconds, by rank, from what is on disk."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for point in cat(folder).points("training.stage.duration.mean"):
        found[point.resource["training.rank"], point.attributes["training.stage"]].append(point.value)
    return {rank: {stage: median(found[rank, stage]) for stage in STAGES} for rank in (0, 1)}


def test_late_rank_and_its_stage_are_named(run: Run, tmp_path: Path) -> None:
    """By the command, with the delay. The other rank waits for it, and all other stages are those of all ranks.

    The example prints the query for Prometheus; its service is that of the series.
    """
    late, stage = 0, "backward"
    job = (sys.executable, *TORCHRUN, TRAIN, "--steps", "25", "--late", f"{stage}:{late}:{LATE}s")
    ended = run("-m", "monitel", "run", "--", *job, env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    summary = " ".join(ended.stderr.split())
    named = re.search(r"late rank: rank (\d) takes ([\d.]+) ms longer than the others in (\w+) ", summary)
    assert named is not None, summary
    assert (late, stage) == (int(named[1]), named[3])
    assert float(named[2]) == pytest.approx(1e3 * LATE, rel=0.4)
    spool = tmp_path / "state/monitel"
    ranks = stages(spool)
    own, other = ranks[late], ranks[1 - late]
    assert own[stage] - other[stage] == pytest.approx(LATE, rel=0.4)
    assert other["sync"] - own["sync"] == pytest.approx(LATE, rel=0.4)
    assert {} == {each: ranks for each in STAGES - {stage, "sync"} if abs(own[each] - other[each]) > LATE / 2}
    assert f"injected: rank {late} is late in {stage} by 200 ms in every step\n" in ended.stdout
    (service,) = re.findall(
        r'^    sort_desc\(training:suspect:seconds\{service_name="(.+)"\}\)$', ended.stdout, re.MULTILINE
    )
    assert {service} == {point.resource["service.name"] for point in cat(spool).points("training.stage.duration.mean")}
