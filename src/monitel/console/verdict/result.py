"""The result: a kind, a sentence, and the numbers in it; ranks and processes in words."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.verdict.facts import RankFacts

#: The kinds of verdicts, in the order of precedence.
Kind: TypeAlias = Literal[
    "dead",
    "failed",
    "ended",
    "silent",
    "stuck",
    "paused",
    "no-steps",
    "starting",
    "compile-storm",
    "late-rank",
    "input-bound",
    "checkpoint-bound",
    "unknown",
    "healthy",
]


class Verdict(NamedTuple):
    """The verdict about a job.

    Attributes:
        kind: The rule that applies.
        text: One line in plain English. Names in it come from the job: print it with ``Screen.printable``.
        rank: The rank that it is about; None if it is about no rank, or about several ones.
        stage: The stage, activity or key of a wait that it is about; empty if there is none.
        seconds: Lateness per step, or time for which the job stands still; None if there is none.
        share: The share of the time that is lost, 0 to 1; None if there is none.
    """

    kind: Kind
    text: str
    rank: int | None = None
    stage: str = ""
    seconds: float | None = None
    share: float | None = None


def ranks_in_words(ranks: Sequence[int], limit: int = 8) -> str:
    """Return ranks in ascending order as words, such as ``ranks 0-6 and 8``.

    Example:
        >>> ranks_in_words([3]), ranks_in_words([0, 1, 2, 5]), ranks_in_words([0, 2], limit=1)
        ('rank 3', 'ranks 0-2 and 5', 'ranks 0 and 1 more')
    """
    runs = []
    for _, group in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in group]
        if len(run) > 2:  # noqa: PLR2004  two are written one by one
            runs.append((f"{run[0]}-{run[-1]}", len(run)))
        else:
            runs += [(str(rank), 1) for rank in run]
    shown = [text for text, _ in runs[:limit]]
    if more := sum(number for _, number in runs[limit:]):
        shown.append(f"{more} more")
    words = " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return f"rank{'s' if len(ranks) > 1 else ''} {words}"


def named(processes: Sequence[RankFacts]) -> str:
    """Return processes in words: their ranks, or their process ids if a rank is not known.

    Example:
        >>> from monitel.console.verdict.facts import RankFacts
        >>> named([RankFacts("7", rank=2)]), named([RankFacts("7")]), named([RankFacts("7"), RankFacts("8", rank=1)])
        ('rank 2', 'process 7', '2 processes')
    """
    ranks = sorted({each.rank for each in processes if each.rank is not None})
    if len(ranks) == len(processes):
        return ranks_in_words(ranks, limit=4)
    return f"process {processes[0].pid}" if len(processes) == 1 else f"{len(processes):,} processes"


def verb(processes: Sequence[RankFacts], singular: str, plural: str) -> str:
    """Return the form of a verb for a number of processes."""
    return singular if len(processes) == 1 else plural
