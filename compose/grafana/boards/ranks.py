"""The board ``monitel / Stragglers``: slow ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.panels import board, histogram, lines, rows
from boards.queries import ALIVE, OF_RUN, RANK_OF, WHO, chosen, outstanding, query
from boards.variables import SELECTION, metric

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard


def make() -> dashboard.Dashboard:
    """Return the board of slow ranks."""
    step = chosen("step")
    median = f"quantile by ({OF_RUN}) (0.5, {step})"
    node = f"{OF_RUN}, training_node_rank, host_name"
    return board(
        "stragglers",
        "monitel / Stragglers",
        "Which ranks are slower than the others. Ranks that wait for each other in every step have equal step times: "
        "compare by what a rank does alone (loading, forward, backward before the all-reduce), or see who waits least.",
        [
            *SELECTION,
            metric("step", "Compare", ".+_seconds", "step_time_mean_seconds", "The times by which ranks are compared."),
        ],
        {
            "How bad it is": [
                lines(
                    "Slowest rank against the median",
                    "x",
                    "1: no straggler. From 2 on an alert fires. It takes three ranks: the median of two lies between.",
                    query(f"max by ({OF_RUN}) ({step}) / {median}", WHO),
                    warn=1.5,
                    alarm=2,
                ),
                lines(
                    "Spread over the ranks",
                    "s",
                    "The highest alone is far off: one rank. The 95th percentile too: many; look at their hosts.",
                    query(f"max by ({OF_RUN}) ({step})", f"{WHO} highest"),
                    query(f"quantile by ({OF_RUN}) (0.95, {step})", f"{WHO} 95th percentile"),
                    query(median, f"{WHO} median"),
                    query(f"quantile by ({OF_RUN}) (0.05, {step})", f"{WHO} 5th percentile"),
                ),
            ],
            "Who it is": [
                rows(
                    "The 20 slowest ranks, in multiples of the median",
                    "x",
                    "Do they share a host? Drain it, or restart the run without it.",
                    f"topk(20, {step} / on ({OF_RUN}) group_left () {median})",
                ),
                lines(
                    "The ten slowest ranks",
                    "s",
                    "Slow from the start: the machine. Slow since a moment: what happened then?",
                    outstanding(step, RANK_OF),
                    query(median, f"{WHO} median"),
                ),
                lines(
                    "The ten slowest nodes",
                    "s",
                    "Mean over the ranks of a node. The node's rank is there if the launcher sets it.",
                    query(
                        f"topk(10, avg by ({node}) ({step}))",
                        f"{WHO} node {{{{training_node_rank}}}} {{{{host_name}}}}",
                    ),
                ),
                histogram("Ranks by step time, now", "s", "A second hump is a second kind of machine.", step),
            ],
            "Who is silent": [
                rows(
                    "Processes that have stopped in the time shown",
                    "dateTimeAsIso",
                    "Ended, killed or cut off, and gone for five minutes. The time is that of the last sign of life.",
                    f"topk(20, 1000 * max_over_time(timestamp({ALIVE})[$__range:1m]) unless {ALIVE})",
                ),
                lines(
                    "The longest silences",
                    "s",
                    "Since the last export: some seconds. It grows while a process cannot reach the backend, or hangs "
                    "without letting go of Python's lock.",
                    query(f"topk(5, time() - timestamp({ALIVE}))", RANK_OF),
                ),
            ],
        },
    )
