"""The board ``monitel / Where the time went``: the time of each process and of the run, by activity.

A rank's activities add up to its time, so the rate of an activity is its share. Rank zero has the time of the run: its
attempts, and the time between them in the activity ``down``, which no other rank has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.panels import bars, board, columns, lines, shares, tile
from boards.queries import OF_RUN, RUN, WHO, outstanding, query, rate, spread
from boards.steps import OF_CURVE, by_step
from boards.variables import OF_PROCESS, SELECTION, choice, split_by

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard

TIME = "training_time_seconds_total"
RANK_ZERO = f'{RUN}, training_rank=~"0|"'  # or a process without ranks
OF_RANKS = f'{RUN}, training_activity!="down"'

_ACTIVITY = f"{OF_RUN}, training_activity"
_RANK = f"{OF_RUN}, training_rank, host_name"
_ATTEMPT = f"{OF_RUN}, training_attempt, instance"
_STEP, _CHOSEN = 'training_activity="step"', 'training_activity="$activity"'


def spent(by: str, series: str) -> str:
    """Return the seconds within the time shown, to the last export.

    ``increase()`` would add time before the first and after the last point of a short job.
    """
    of = f"{TIME}{{{series}}}[$__range]"
    return f"sum by ({by}) (max_over_time({of}) - min_over_time({of}))"


def flowing(by: str, series: str) -> str:
    """Return the seconds per second."""
    return f"sum by ({by}) (rate({TIME}{{{series}}}[$__rate_interval]))"


def share(part: str, whole: str, by: str) -> str:
    """Return the share of a part that has more labels than the whole."""
    return f"{part} / on ({by}) group_left () {whole}"


def share_or_zero(part: str, whole: str) -> str:
    """Return the share of a part that may be missing, with the same labels."""
    return f"(({part}) or 0 * {whole}) / {whole}"


def make() -> dashboard.Dashboard:
    """Return the board of the ledger."""
    activity = choice(
        "activity",
        "Activity",
        "For the panels that compare ranks by one activity.",
        metric=f"{TIME}{{{RUN}}}",
        of="training_activity",
        default="data",
    )
    of_run = spent(OF_RUN, RANK_ZERO)
    run_by_activity = spent(_ACTIVITY, RANK_ZERO)
    of_ranks = spent(OF_RUN, OF_RANKS)
    by_activity = spent(_ACTIVITY, OF_RANKS)
    restarts = f'{RANK_ZERO}, training_activity=~"down|lost"'

    def of_rank(activity: str) -> str:
        """Return the shares of an activity in the time of each rank."""
        return share_or_zero(spent(_RANK, f"{RUN}, {activity}"), spent(_RANK, OF_RANKS))

    def of_attempt(activity: str) -> str:
        """Return the seconds of an activity in each attempt."""
        return f"({spent(_ATTEMPT, f'{RANK_ZERO}, {activity}')}) or 0 * {spent(_ATTEMPT, RANK_ZERO)}"

    def worst(activity: str) -> str:
        """Return the shares of an activity in the time of the 20 ranks with the lowest share of steps."""
        return f"{of_rank(activity)} and bottomk(20, {of_rank(_STEP)})"

    now_of_rank = share_or_zero(flowing(_RANK, f"{RUN}, {_CHOSEN}"), flowing(_RANK, OF_RANKS))
    steps_of_rank = share_or_zero(flowing(_RANK, f"{RUN}, {_STEP}"), flowing(_RANK, OF_RANKS))
    curve = flowing(OF_CURVE, OF_RANKS)
    return board(
        "time",
        "monitel / Where the time went",
        "The time of a run by activity, which adds up to 100 %: steps, waiting for data, checkpoints, restarts.",
        [*SELECTION, activity, split_by(*OF_PROCESS)],
        {
            "In the time shown": [
                tile(
                    "Goodput",
                    "percentunit",
                    "The share of steps, without those that were done again, in the time of rank zero and between its "
                    "attempts.",
                    f"{spent(OF_RUN, f'{RANK_ZERO}, {_STEP}')} / {of_run}",
                    WHO,
                    warn=0.8,
                    alarm=0.5,
                ),
                tile(
                    "Largest overhead",
                    "percentunit",
                    "The activity other than steps that takes most of the time of rank zero.",
                    f"topk by ({OF_RUN}) (1, "
                    + share(spent(_ACTIVITY, f'{RANK_ZERO}, training_activity!="step"'), of_run, OF_RUN)
                    + ")",
                    f"{WHO} {{{{training_activity}}}}",
                ),
                tile(
                    "Rank with the fewest steps",
                    "percentunit",
                    "The lowest share of steps in the time of a rank. In a synchronous job the other ranks wait for it "
                    "within their steps.",
                    f"bottomk by ({OF_RUN}) (1, {of_rank(_STEP)})",
                    f"{WHO} rank {{{{training_rank}}}} {{{{host_name}}}}",
                    warn=0.8,
                    alarm=0.5,
                ),
                columns(
                    "Time of the run",
                    "Of rank zero, with all attempts. down: between attempts. lost: steps of an earlier attempt that "
                    "were done again.",
                    "-seconds",
                    seconds=("s", run_by_activity),
                    share=("percentunit", share(run_by_activity, of_run, OF_RUN)),
                ),
                columns(
                    "Time of all ranks",
                    "The sum over the ranks, while they ran: without the time between attempts.",
                    "-seconds",
                    seconds=("s", by_activity),
                    share=("percentunit", share(by_activity, of_ranks, OF_RUN)),
                ),
            ],
            "Over time": [
                shares(
                    "Where the time of all ranks goes",
                    "Time between attempts is a gap.",
                    rate(
                        share(flowing(_ACTIVITY, OF_RANKS), flowing(OF_RUN, OF_RANKS), OF_RUN),
                        f"{WHO} {{{{training_activity}}}}",
                    ),
                ),
                lines(
                    "Goodput of the run so far",
                    "percentunit",
                    "Of rank zero, since the first attempt began. It falls while the run is down, and when steps are "
                    "done again.",
                    query(
                        f"max by ({OF_RUN}, training_attempt) (training_goodput_ratio{{{RANK_ZERO}}})",
                        f"{WHO} {{{{training_attempt}}}}",
                    ),
                ),
                lines(
                    "Share of steps",
                    "percentunit",
                    "At each time, over the ranks. An alert fires if the lowest rank stays below a half.",
                    *spread(steps_of_rank),
                ),
            ],
            "Ranks": [
                columns(
                    "The 20 ranks with the lowest share of steps",
                    "Shares in the time of each rank, in the time shown. Do they share a host?",
                    "step",
                    step=("percentunit", f"bottomk(20, {of_rank(_STEP)})"),
                    data=("percentunit", worst('training_activity="data"')),
                    checkpoint=("percentunit", worst('training_activity=~"checkpoint[.].*"')),
                    stuck=("percentunit", worst('training_activity="stuck"')),
                    activity=("percentunit", worst(_CHOSEN)),
                ),
                lines(
                    "$activity over the ranks",
                    "percentunit",
                    "All alike: the job. One much higher: this rank, or its host.",
                    *spread(now_of_rank),
                ),
                lines(
                    "$activity, the ten highest ranks",
                    "percentunit",
                    "High from the start: the machine. High since a moment: what happened then?",
                    outstanding(f"({now_of_rank})", f"{WHO} rank {{{{training_rank}}}} {{{{host_name}}}}", every="1m"),
                ),
            ],
            "Restarts": [
                columns(
                    "Attempts",
                    "Seconds of rank zero, the newest attempt of a process last. down: before the attempt. repeated: "
                    "steps of earlier attempts that it did again.",
                    "training_attempt",
                    down=("s", of_attempt('training_activity="down"')),
                    startup=("s", of_attempt('training_activity="startup"')),
                    repeated=("s", of_attempt('training_activity="lost"')),
                    step=("s", of_attempt(_STEP)),
                    total=("s", spent(_ATTEMPT, RANK_ZERO)),
                ),
                bars(
                    "Time spent on restarts",
                    "s",
                    "In the time shown, of rank zero. Long in lost: save checkpoints more often. Long in down: look at "
                    "the scheduler.",
                    spent(_ACTIVITY, restarts),
                    f"{WHO} {{{{training_activity}}}}",
                ),
            ],
            "By training step": [
                by_step(
                    "Share of steps by step",
                    "percentunit",
                    "Over all ranks, at the time of the step.",
                    f"{flowing(OF_CURVE, f'{RUN}, {_STEP}')} / {curve}",
                    every="1m",
                ),
                by_step(
                    "$activity by step",
                    "percentunit",
                    "The share over all ranks, at the time of the step.",
                    share_or_zero(flowing(OF_CURVE, f"{RUN}, {_CHOSEN}"), curve),
                    every="1m",
                ),
            ],
        },
    )
