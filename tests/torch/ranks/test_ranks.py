"""Real jobs of two and four ranks: waits for other ranks are ``sync``, and the rules name the late rank, or nobody."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.torch.ranks.job import victim
from tests.torch.ranks.late_model import LATE, PLACES
from tests.torch.ranks.ranks import run_ranks
from tests.torch.ranks.waits_job import LATE as WAIT

from monitel.console.lateness import suspects

Case = tuple[str, str]  # kind and place

RANKS = 4
ATTEMPTS = 3
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


@dataclass(frozen=True)
class Named:
    """Suspects of the rules in one case: seconds, rank and stage, the largest first."""

    case: Case
    suspects: Sequence[tuple[float, int, str]]

    @property
    def is_right(self) -> bool:
        """True if the late rank and its stage come first, with the known delay, and nobody else is named for half."""
        if self.case[0] == NOBODY:
            return not self.suspects
        kind, place = self.case
        others = [each for each in self.suspects[1:] if each[0] > LATE / 2]
        named = [(victim(kind, place), PLACES[place][0])] == [each[1:] for each in self.suspects[:1]]
        return named and abs(self.suspects[0][0] - LATE) < LATE / 3 and not others


def measure(cases: Iterable[Case]) -> tuple[dict[Case, Named], dict[str, bool]]:
    """Run cases; return what was named, and by kind whether the gradients were those of a job without monitel.

    Cases that are not right are measured again, because the machine makes ranks late, too.
    """
    found: dict[Case, Named] = {}
    same: dict[str, bool] = {}
    left = list(cases)
    for attempt in range(ATTEMPTS):
        if left:
            ranks = _run(left, compared=not attempt)
        for kind, place in left:
            found[kind, place] = Named((kind, place), _suspects([each[kind] for each in ranks], place))
            same.setdefault(kind, all(each[kind]["same"] for each in ranks))
        left = [case for case in left if not found[case].is_right]
    return found, same


def _run(cases: Iterable[Case], *, compared: bool) -> list[dict[str, Any]]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        run_ranks("job", RANKS, folder, "yes" if compared else "no", *map(":".join, cases))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]


def _suspects(ranks: list[dict[str, Any]], place: str) -> list[tuple[float, int, str]]:
    groups: dict[Any, dict[int, dict[str, float]]] = {}
    for rank, each in enumerate(ranks):
        groups.setdefault(each["group"], {})[rank] = each["stages"][place]
    return sorted((each for times in groups.values() for each in suspects(times)), reverse=True)


def test_kinds_of_jobs() -> None:
    """In each kind of job the rank that is late at one place is named, and nobody else; gradients stay the same."""
    found, same = measure(CASES.items())
    assert {} == {case: each.suspects for case, each in found.items() if not each.is_right}
    assert {*CASES} == {kind for kind in same if same[kind]}


def test_waits(tmp_path: Path) -> None:
    """Each wait is ``sync``, and only once; waits of other threads are not."""
    run_ranks("waits_job", 2, tmp_path)
    found = json.loads((tmp_path / "waits.json").read_text())
    for name in ("in another thread", "nothing"):
        sync, truth = found.pop(name)
        assert sync < WAIT / 3 < truth, name
    # The job measures the whole operation, which on a loaded machine takes longer than the wait in it.
    assert {} == {name: times for name, times in found.items() if not (WAIT / 3 < times[0] <= times[1] + TOLERANCE)}
