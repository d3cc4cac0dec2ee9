"""The board ``monitel / Waits``: waits of the ranks, and their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.panels import Repeated, bars, board, lines
from boards.queries import OF_RUN, OF_SERVICE, RANK_OF, RUN, SERVICE, WHO, query, rate, spread
from boards.variables import SELECTION, choice, several

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard


def make() -> dashboard.Dashboard:
    """Return the board of waits."""
    counter = several(
        choice(
            "wait",
            "Wait counter",
            "The keys of wait counters, with _ for each dot.",
            metric=f'{{__name__=~".+_wait_active", {RUN}}}',
            of="__name__",
            regex="/^(.+)_wait_active$/",
        )
    )
    waiting = f"rate(${{wait}}_wait_time_seconds_total{{{RUN}}}[$__rate_interval])"
    return board(
        "waits",
        "monitel / Waits",
        "Where the time goes that is not computing: data loading, collectives, checkpoints, as wait counters have it.",
        [*SELECTION, counter],
        {
            "All together": [
                bars(
                    "Time waited since the start",
                    "s",
                    "Of all ranks that have reported within five minutes. Begin with the longest bar.",
                    f'sum by ({OF_SERVICE}, __name__) ({{__name__=~"${{wait}}_wait_time_seconds_total", {RUN}}})',
                    f"{SERVICE} {{{{__name__}}}}",
                ),
                bars(
                    "Waits in flight",
                    "short",
                    "Of all ranks. As many as there are ranks, for minutes: a hang, and this is where.",
                    f'sum by ({OF_SERVICE}, __name__) ({{__name__=~"${{wait}}_wait_active", {RUN}}})',
                    f"{SERVICE} {{{{__name__}}}}",
                ),
            ],
            Repeated("$wait"): [
                lines(
                    "Share of the time",
                    "percentunit",
                    "1: a rank, or one thread of it, does nothing else. Data loading above a tenth: more workers.",
                    *spread(waiting),
                ),
                lines(
                    "Who waits least",
                    "percentunit",
                    "For a collective, these are the slow ranks: they come last, and the others wait for them.",
                    rate(f"bottomk(5, {waiting})", RANK_OF),
                ),
                lines(
                    "Longest wait",
                    "s",
                    "Of any rank, in the minute before. Peaks at regular times are often checkpoints.",
                    query(f"max by ({OF_RUN}) (${{wait}}_wait_max_seconds{{{RUN}}})", WHO),
                ),
                lines(
                    "Waits per second, and in flight",
                    "short",
                    "In flight and none ending: it hangs.",
                    rate(f"sum by ({OF_RUN}) (rate(${{wait}}_wait_count_total{{{RUN}}}[$__rate_interval]))", WHO),
                    query(f"sum by ({OF_RUN}) (${{wait}}_wait_active{{{RUN}}})", f"{WHO} in flight"),
                ),
            ],
        },
    )
