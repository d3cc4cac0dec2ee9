"""Late ranks that the rules name in each kind of job.

``python -m tests.torch.ranks.measured_kinds`` prints the table of the jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.torch.ranks.groups_of_ranks import GROUPED
from tests.torch.ranks.job import victim
from tests.torch.ranks.kinds_of_jobs import KINDS
from tests.torch.ranks.late_model import LATE, PLACES
from tests.torch.ranks.ranks import run_ranks

from monitel.console.lateness import suspects

Case = tuple[str, str]  # kind and place
RANKS = 4
ATTEMPTS = 3
NOBODY = ("independent trainings", "autograd.grad instead of backward")  # kinds in which no rank can be named


@dataclass(frozen=True)
class Named:
    """Suspects of the rules in one case: seconds, rank and stage, the largest first."""

    case: Case
    suspects: Sequence[tuple[float, int, str]]

    @property
    def is_right(self) -> bool:
        """True if the late rank and its stage come first, with the known delay, and nobody else is named for half."""
        if self.case[0] in NOBODY:
            return not self.suspects
        others = [each for each in self.suspects[1:] if each[0] > LATE / 2]
        return self.is_named and abs(self.suspects[0][0] - LATE) < LATE / 3 and not others

    @property
    def is_named(self) -> bool:
        """True if the late rank and its stage come first."""
        kind, place = self.case
        return [(victim(kind, place), PLACES[place][0])] == [each[1:] for each in self.suspects[:1]]

    @property
    def is_wrong(self) -> bool:
        """True if another rank or stage comes first."""
        return bool(self.suspects) and not self.is_named


def measure(cases: Iterable[Case], *, compared: bool = False) -> tuple[dict[Case, Named], dict[str, bool]]:
    """Run cases. Those that are not right are measured again, because the machine makes ranks late, too.

    Args:
        cases: The cases.
        compared: Compare the gradients with those of a job that is not instrumented.

    Returns:
        What was named in each case, and by kind whether the gradients were the same.
    """
    found: dict[Case, Named] = {}
    same: dict[str, bool] = {}
    left = list(cases)
    for attempt in range(ATTEMPTS):
        if not left:
            break
        ranks = _run(left, compared=compared and not attempt)
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


def main() -> None:
    found, same = measure(((kind, place) for kind in KINDS for place in PLACES), compared=True)
    print("| job | named | lateness, ms | wrong | others, ms |\n|---|---|---|---|---|")  # noqa: T201  a script
    for kind in KINDS:
        cases = [found[kind, place] for place in PLACES]
        right = [round(each.suspects[0][0] * 1e3) for each in cases if each.is_named]
        others = [round(late * 1e3) for each in cases for late, _, _ in each.suspects[each.is_named :]]
        between = f"{min(right)} to {max(right)}" if right else ""
        label = f"{kind} (with `rank_group`)" if kind in GROUPED else kind
        wrong = sum(each.is_wrong for each in cases)
        print(f"| {label} | {len(right)} of {len(cases)} | {between} | {wrong} | {max(others, default='')} |")  # noqa: T201  a script
    print("Other gradients than without instrument():", [kind for kind in KINDS if not same[kind]])  # noqa: T201  a script


if __name__ == "__main__":
    main()
