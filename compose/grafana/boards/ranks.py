"""The board ``monitel / Who holds the job up``: late ranks, by stage.

Its values are recorded by the rules of the stack. Ranks are compared within a group of a run's attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.models import dashboard as model

from boards.panels import bars, board, columns, histogram, lines, rows, shares, tile
from boards.queries import ALIVE, OF_RUN, RANK_OF, RUN, WHO, outstanding, query
from boards.variables import SELECTION, choice, several

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard, table

OF_GROUP = f"{OF_RUN}, training_attempt, training_group"
GROUPS = f'{RUN}, training_group=~"$group"'

_RANK = f"{OF_GROUP}, training_rank, host_name"
_ONE_RANK = f"{OF_GROUP}, training_rank, instance"  # equal in all rules
_SUSPECT = f"{_RANK}, k8s_pod_name, training_stage"
_GROUP = f"{WHO} {{{{training_group}}}}"
_RANK_OF_GROUP = f"{_GROUP} rank {{{{training_rank}}}} {{{{host_name}}}}"
_EVERY = "15s"  # rules record no more often

# Opens the board with the rank of a row.
_CHOOSE_RANK = (
    "/d/monitel-ranks?${namespace:queryparam}&${service:queryparam}&${run:queryparam}&${group:queryparam}"
    "&var-stage=${__data.fields.training_stage}&var-rank=${__value.raw}&${__url_time_range}"
)


def of_cycle(seconds: str) -> str:
    """Return seconds as a share of the cycle of their group."""
    return f"{seconds} / on ({OF_GROUP}) group_left () training:cycle:seconds{{{GROUPS}}}"


def suspects() -> table.Panel:
    """Return the table of suspects; a click on a rank chooses it."""
    first = f"topk(20, training:suspect:seconds{{{GROUPS}}})"
    waited = f"0 * {first} + on ({_ONE_RANK}) group_left () training:rank_late:seconds{{{GROUPS}}}"
    return (
        columns(
            "Suspects now",
            "Seconds per step. late: by which the rank is later than the median of its group in this stage. awaited: "
            "by which the others wait longer than the rank. share: late, as a share of the cycle. Several ranks of one "
            "host: the host. Click a rank to see its stages below.",
            "-late",
            late=("s", f"max by ({_SUSPECT}) ({first})"),
            awaited=("s", f"max by ({_SUSPECT}) ({waited})"),
            share=("percentunit", f"max by ({_SUSPECT}) ({of_cycle(first)})"),
        )
        .no_value("none")
        .override_by_name(
            "training_rank",
            [model.DynamicConfigValue("links", [{"title": "Show the stages of this rank", "url": _CHOOSE_RANK}])],
        )
    )


def beside_the_median() -> table.Panel:
    """Return the table of a rank's stages.

    The median is what the lateness leaves of a rank's time, so that no other rank is read.
    """
    rank = f'{RUN}, training_rank="$rank"'
    by = f"{_RANK}, training_stage"
    late = (
        f"training:stage_late:seconds{{{rank}}}"
        f' or label_replace(-training:rank_late:seconds{{{rank}}}, "training_stage", "sync", "", "")'
    )
    own = f"training:stage:seconds{{{rank}}}"
    return columns(
        "Rank $rank beside the median",
        "Seconds per step of the chosen rank. median: of the ranks of its group; if there are two ranks, the time of "
        "the other one. A late rank has more than the median in the stage that is to blame, and less in sync, in which "
        "it waits for the others.",
        "-late",
        rank=("s", f"max by ({by}) ({own})"),
        median=("s", f"max by ({by}) ({own} - on ({_ONE_RANK}, training_stage) ({late}))"),
        late=("s", f"max by ({by}) ({late})"),
    ).no_value("-")


def make() -> dashboard.Dashboard:
    """Return the board of late ranks."""
    stage = choice(
        "stage",
        "Stage",
        "For the panels that compare ranks by one stage.",
        metric=f"training:stage_late:seconds{{{RUN}}}",
        of="training_stage",
        default="data",
    )
    group = several(
        choice(
            "group",
            "Group",
            "The training.group, within which ranks are compared. A rank without one is in All.",
            metric=f"training:cycle:seconds{{{RUN}}}",
            of="training_group",
        )
    ).all_value(".*")
    rank = choice("rank", "Rank", "The rank beside the median.", metric=ALIVE, of="training_rank", default="0")
    exposed = f"training:stage_exposed:seconds{{{GROUPS}}}"
    late = f'training:stage_late:seconds{{{GROUPS}, training_stage="$stage"}}'
    rank_late = f"training:rank_late:seconds{{{GROUPS}}}"
    waits = f'training:stage:seconds{{{GROUPS}, training_stage="sync"}}'
    median_wait = f'training:stage_median:seconds{{{GROUPS}, training_stage="sync"}}'
    of_host = f"{OF_RUN}, host_name"
    return board(
        "ranks",
        "monitel / Who holds the job up",
        "All ranks of a synchronous job have the same step time: the late one makes the others wait. Which rank is "
        "late, in which stage, and by how much?",
        [*SELECTION, group, stage, rank],
        {
            "Now": [
                tile(
                    "First suspect",
                    "s",
                    "The rank that is latest in a stage while the others wait for it, and by how much in each step. "
                    "none: no rank holds up the job.",
                    f"topk by ({OF_RUN}) (1, training:suspect:seconds{{{GROUPS}}})",
                    f"{_RANK_OF_GROUP} {{{{training_stage}}}}",
                ).span(12),
                tile(
                    "Cycle",
                    "s",
                    "Time from one synchronization of the ranks to the next, which is usually a step; of the slowest "
                    "group.",
                    f"max by ({OF_RUN}) (training:cycle:seconds{{{GROUPS}}})",
                    WHO,
                ),
                tile(
                    "Share of waiting",
                    "percentunit",
                    "The part of the time in which a rank waits for other ranks, averaged over the ranks; of the group "
                    "that waits longest. High without a suspect: the communication itself, or each rank is late at "
                    "times.",
                    f"max by ({OF_RUN}) ({of_cycle(f'avg by ({OF_GROUP}) ({waits})')})",
                    WHO,
                    warn=0.1,
                    alarm=0.3,
                ),
                tile(
                    "Ranks compared",
                    "short",
                    "Ranks with times of their stages and another rank in the group.",
                    f"count by ({OF_RUN}) ({rank_late})",
                    WHO,
                ),
            ],
            "Who, in which stage, and by how much": [
                bars(
                    "Exposed time per stage",
                    "s",
                    "The part of a step that each stage takes when the rank that is furthest counts: the bars of a "
                    "group add up to its cycle. Begin with the longest. sync: waiting that no single rank explains.",
                    f"sort_desc({exposed})",
                    f"{_GROUP} {{{{training_stage}}}}",
                ),
                suspects(),
                lines(
                    "Suspects over time",
                    "s",
                    "By how much they are late in each step. The ten with the highest last values, or fewer. Late from "
                    "the start: the machine. Late since a moment: what happened then?",
                    outstanding(
                        f"training:suspect:seconds{{{GROUPS}}}",
                        f"{_RANK_OF_GROUP} {{{{training_stage}}}}",
                        every=_EVERY,
                    ),
                ),
                lines(
                    "Cycle over time",
                    "s",
                    "Of each group. The ranks of a synchronous job all have this time, the late one too.",
                    query(f"training:cycle:seconds{{{GROUPS}}}", _GROUP, every=_EVERY),
                ),
                shares(
                    "Exposed time over time",
                    "As shares of the cycle. A stage that grows holds up the job, even if all ranks are alike.",
                    query(of_cycle(exposed), f"{_GROUP} {{{{training_stage}}}}", every=_EVERY),
                ),
            ],
            "A rank beside the median": [
                beside_the_median(),
                lines(
                    "Rank $rank over time",
                    "s",
                    "By how much the chosen rank is later than the median in each stage; below zero it is earlier. "
                    "awaited: by how much the others wait longer than this rank.",
                    query(
                        f'training:stage_late:seconds{{{RUN}, training_rank="$rank"}}',
                        f"{_GROUP} {{{{training_stage}}}}",
                        every=_EVERY,
                    ),
                    query(
                        f'training:rank_late:seconds{{{RUN}, training_rank="$rank"}}', f"{_GROUP} awaited", every=_EVERY
                    ),
                ),
            ],
            "All ranks": [
                lines(
                    "$stage, later than the median",
                    "s",
                    "Over the ranks. The highest alone is far off: one rank. The lowest too: the ranks differ; compare "
                    "them within groups.",
                    query(f"max by ({OF_GROUP}) ({late})", f"{_GROUP} highest", every=_EVERY),
                    query(f"min by ({OF_GROUP}) ({late})", f"{_GROUP} lowest", every=_EVERY),
                ),
                histogram(
                    "Ranks by lateness in $stage, now",
                    "s",
                    "A second hump is a second kind of machine, or of work.",
                    late,
                ),
                lines(
                    "$stage, the ten latest hosts",
                    "s",
                    "Mean over the ranks of a host. One host is far above the others: look at the machine.",
                    outstanding(f"avg by ({of_host}) ({late})", f"{WHO} {{{{host_name}}}}", every=_EVERY),
                ),
                lines(
                    "Ranks that the others wait for",
                    "s",
                    "By how much the median rank waits longer than this one, in all stages together. The ten with the "
                    "highest last values.",
                    outstanding(rank_late, _RANK_OF_GROUP, every=_EVERY),
                ),
                lines(
                    "Share of waiting over the ranks",
                    "percentunit",
                    "The lowest alone is far off: the others wait for this rank. All are high: the communication "
                    "itself, or ranks that are late in turn.",
                    query(of_cycle(median_wait), f"{_GROUP} median", every=_EVERY),
                    query(of_cycle(f"max by ({OF_GROUP}) ({waits})"), f"{_GROUP} highest", every=_EVERY),
                    query(of_cycle(f"min by ({OF_GROUP}) ({waits})"), f"{_GROUP} lowest", every=_EVERY),
                ),
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
                    "About a minute at most. It grows while a process cannot reach the backend, or hangs "
                    "without letting go of Python's lock.",
                    query(f"topk(5, time() - timestamp({ALIVE}))", RANK_OF),
                ),
            ],
        },
    )
