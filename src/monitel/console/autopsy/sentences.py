"""The comparison of the ranks of a job in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.console.autopsy.findings import State
from monitel.console.text import duration, wrapped
from monitel.console.verdict.result import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monitel.console.autopsy.comparison import Comparison, SharedWait
    from monitel.console.autopsy.findings import Findings
    from monitel.console.text import Screen

_WAITS, _LATE, _CAUSES, _STEPS = 3, 8, 4, 4


def compared(comparison: Comparison, screen: Screen) -> Iterator[str]:
    """Yield lines: the ranks that wait, the ranks that they wait for, dead ranks, and different last steps."""
    for sentence in _sentences(comparison, screen):
        yield from wrapped(sentence, screen.width)


def _sentences(comparison: Comparison, screen: Screen) -> Iterator[str]:
    for wait in comparison.waits[:_WAITS]:
        yield from _wait(wait, comparison, screen)
    yield from _deaths(comparison, screen)
    if len(comparison.steps) > 1:
        steps = [f"{step:,} ({ranks_in_words(ranks)})" for step, ranks in comparison.steps.items()]
        more = f" and {len(steps) - _STEPS} more" if len(steps) > _STEPS else ""
        yield f"last steps differ: {', '.join(steps[:_STEPS])}{more}"


def _wait(wait: SharedWait, comparison: Comparison, screen: Screen) -> Iterator[str]:
    key, waited = screen.printable(wait.key), duration(wait.longest_ns)
    over = len(comparison.dead) == len(comparison.ranks)
    waiting = [*wait.waiting]
    verb = "waited" if over else "waits" if len(waiting) == 1 else "wait"
    since = f"{verb} in {key} for {waited}" if len(waiting) == 1 else f"{verb} in {key}, the first one for {waited}"
    if wait.missing:
        yield f"{ranks_in_words(waiting)} {since}"
        for rank in wait.late[:_LATE]:
            doing = _doing(comparison.ranks[rank], screen, over=over)
            yield f"late: rank {rank} {'was' if over else 'is'} not in {key}: {doing}"
        if len(wait.late) > _LATE:
            yield f"late: {len(wait.late) - _LATE:,} more"
        return
    elsewhere = comparison.elsewhere
    yield f"all {len(waiting)} ranks{' found here' if elsewhere else ''} {since}"
    if elsewhere and wait.long:
        yield f"{ranks_in_words(elsewhere)} {_has(elsewhere)} no box here: on another machine, or ended"


def _deaths(comparison: Comparison, screen: Screen) -> Iterator[str]:
    """Yield the dead ranks by cause. That all ranks have died of an unknown cause is not news."""
    causes: dict[str, list[int]] = {}
    for rank in comparison.dead:
        causes.setdefault(comparison.ranks[rank].death, []).append(rank)
    for cause, ranks in [*causes.items()][:_CAUSES]:
        if cause or len(comparison.dead) < len(comparison.ranks):
            yield f"{ranks_in_words(ranks)} {_has(ranks)} died: {screen.printable(cause) or 'cause unknown'}"


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _doing(found: Findings, screen: Screen, *, over: bool) -> str:
    """Return the state and the activity of a late rank in words.

    Args:
        found: The rank.
        screen: The stream that the words are printed to.
        over: All ranks have died.
    """
    state = ""
    if found.state is State.SILENT:
        state = "it is silent; "
    elif found.state is State.DEAD and not over:
        state = f"it has died ({screen.printable(found.death) or 'cause unknown'}); "
    past = found.state is State.DEAD
    if found.waits:
        wait = found.waits[0]
        waits = "waited" if past else "waits"
        return f"{state}it {waits} in {screen.printable(wait.key)} for {duration(wait.age_ns)}"
    if found.stage is not None and found.activity in {"", "step"}:
        waits_too = ", waiting for other ranks" if found.stage.waits else ""
        stage = f"{screen.printable(found.stage.name)} for {duration(found.stage.age_ns)}"
        return f"{state}it {'was' if past else 'is'} in stage {stage}{waits_too}"
    if found.activity:
        since = "" if found.activity_age_ns is None else f" for {duration(found.activity_age_ns)}"
        return f"{state}its activity {'was' if past else 'is'} {screen.printable(found.activity)}{since}"
    return f"{state}it {'was' if past else 'is'} in no wait"
