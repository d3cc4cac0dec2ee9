"""Real jobs of two and four ranks: waits for other ranks are ``sync``, and the rules name the late rank, or nobody."""

import json
from pathlib import Path
from typing import Any

from tests.torch.ranks.job import victim
from tests.torch.ranks.late_model import LATE, PLACES
from tests.torch.ranks.ranks import run_ranks
from tests.torch.ranks.waits_job import LATE as WAIT

from monitel.console.lateness import suspects

RANKS = 4
ATTEMPTS = 3  # the machine makes ranks late, too
NOBODY = "independent trainings"  # no rank can be named
TOLERANCE = 0.005  # seconds
CASES = {
    "DDP with buffers (BatchNorm)": "data",
    "DDP, checkpointed layers, reentrant": "backward, middle",
    "DDP, accumulation with no_sync": "other",
    "DDP, compiled": "optimizer",
    "FSDP2 (fully_shard)": "backward, begin",
    "all-reduce in a compiled graph": "forward, begin",
    "independent trainings": "data",
    "tensor parallel in pairs by DTensor, fully_shard over the pairs": "forward, middle",
    "pipeline, two unequal stages of two ranks": "data",
}


def named(ranks: list[dict[str, Any]]) -> list[tuple[float, int, str]]:
    """Return the suspects in one kind of job: seconds, rank and stage, the largest first."""
    groups: dict[Any, dict[int, dict[str, float]]] = {}
    for rank, each in enumerate(ranks):
        groups.setdefault(each["group"], {})[rank] = each["stages"]
    return sorted((each for times in groups.values() for each in suspects(times)), reverse=True)


def is_right(kind: str, found: list[tuple[float, int, str]]) -> bool:
    """Return whether the late rank and its stage come first, with the known delay, and no other is named for half."""
    if kind == NOBODY or not found:
        return kind == NOBODY and not found
    place = CASES[kind]
    (seconds, *late), others = found[0], [each for each in found[1:] if each[0] > LATE / 2]
    return late == [victim(kind, place), PLACES[place][0]] and abs(seconds - LATE) < LATE / 3 and not others


def test_kinds_of_jobs(tmp_path: Path) -> None:
    """In each kind of job the rank that is late at one place is named, and nobody else; gradients stay the same."""
    wrong: dict[str, Any] = {}
    for attempt in range(ATTEMPTS):
        kinds = [*(wrong if attempt else CASES)]
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run_ranks("job", RANKS, folder, *(f"{kind}:{CASES[kind]}" for kind in kinds))
        ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
        assert dict.fromkeys(kinds, True) == {kind: all(each[kind]["same"] for each in ranks) for kind in kinds}
        found = {kind: named([each[kind] for each in ranks]) for kind in kinds}
        wrong = {kind: found[kind] for kind in kinds if not is_right(kind, found[kind])}
        if not wrong:
            break
    assert {} == wrong


def test_waits(tmp_path: Path) -> None:
    """Each wait is ``sync``, and only once; waits of other threads are not."""
    run_ranks("waits_job", 2, tmp_path)
    found = json.loads((tmp_path / "waits.json").read_text())
    for name in ("in another thread", "nothing"):
        sync, truth = found.pop(name)
        assert sync < WAIT / 3 < truth, name
    # The job measures the whole operation, which on a loaded machine takes longer than the wait in it.
    assert {} == {name: times for name, times in found.items() if not (WAIT / 3 < times[0] <= times[1] + TOLERANCE)}
