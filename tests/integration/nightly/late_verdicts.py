"""Verdicts of other methods on the same measurements: timers around the sections of the loop, compared over ranks.

The sections are those that a user would time: ``data``, ``forward``, ``backward with the wait``, ``optimizer`` and
``other``. Each function returns pairs of rank and stage, the most suspicious first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, median

Sections = Mapping[int, Mapping[str, Sequence[float]]]
Suspect = tuple[int, str]

#: The sections in the order of the loop, with the names of the stages.
SECTIONS = {
    "data": "data",
    "forward": "forward",
    "backward with the wait": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
#: The score below which nvidia-resiliency-ext calls a rank a straggler.
NVRX_THRESHOLD = 0.75


def nvrx_scores(sections: Sections) -> dict[Suspect, float]:
    """Return the relative scores of nvidia-resiliency-ext: the least median of the ranks in a rank's own median."""
    scores = {}
    for section, stage in SECTIONS.items():
        medians = {rank: median(of[section]) for rank, of in sections.items()}
        best = min(medians.values())
        scores.update({(rank, stage): best / own for rank, own in medians.items()})
    return scores


def nvrx(sections: Sections) -> list[Suspect]:
    """Return ranks and sections by their relative score, the worst first."""
    scores = nvrx_scores(sections)
    return sorted(scores, key=lambda each: scores[each])


def nvrx_stragglers(sections: Sections) -> set[Suspect]:
    """Return the ranks and sections below the default threshold."""
    return {each for each, score in nvrx_scores(sections).items() if score < NVRX_THRESHOLD}


def longest_iteration(sections: Sections) -> list[Suspect]:
    """Return ranks by their mean time of an iteration, as one-logger reports it. It has no stage."""
    means = {
        rank: sum(fmean(of[section]) for section in SECTIONS if section != "other") for rank, of in sections.items()
    }
    return [(rank, "") for rank in sorted(means, key=lambda each: -means[each])]


def largest_excess(sections: Sections) -> list[Suspect]:
    """Return ranks and sections by how far the mean exceeds the median of the ranks: the maximum of each timer."""
    excess = {}
    for section, stage in SECTIONS.items():
        means = {rank: fmean(of[section]) for rank, of in sections.items()}
        middle = median(means.values())
        excess.update({(rank, stage): own - middle for rank, own in means.items()})
    return sorted(excess, key=lambda each: -excess[each])


def usual_frontier(sections: Sections) -> list[Suspect]:
    """Return the rank furthest behind since the batch, per section, the section that increases its lead most first."""
    ends = {rank: list(accumulate(fmean(of[section]) for section in SECTIONS)) for rank, of in sections.items()}
    leads = [max(column) - median(column) for column in zip(*ends.values(), strict=True)]
    gains = [after - before for before, after in zip([0.0, *leads], leads, strict=False)]
    last = [max(ends, key=lambda rank: ends[rank][place]) for place in range(len(SECTIONS))]
    order = sorted(range(len(SECTIONS)), key=lambda place: -gains[place])
    stages = list(SECTIONS.values())
    return [(last[place], stages[place]) for place in order]
