"""The result: a kind, a sentence, and the numbers in it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

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
