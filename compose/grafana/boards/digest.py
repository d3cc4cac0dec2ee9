"""All ranks in a few series: ``monitel / Digest``, for jobs with ``configure(ranks="digest")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.events import NOT_RUN
from boards.panels import board, lines, log_lines
from boards.queries import RUN, WHO, query, rate, stat
from boards.variables import JOB, RUNS, chosen_stat

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard


def make() -> dashboard.Dashboard:
    """The digest of all ranks."""
    slowest, median = stat("step", what="ranks_max"), stat("step", what="ranks_p50")
    heard = stat("step", what="ranks_count")
    chosen = '{service_name=~"$job"} | training_run_id=~"$run" | scope_name=`monitel`'
    shown = (
        "| line_format `{{__line__}} rank={{.rank}} host={{.host}} step={{.training_step}} stat={{.stat}} "
        "mean={{.mean}} median={{.median}} ratio={{.ratio}} score={{.score}}`"
    )
    return board(
        "digest",
        "monitel / Digest",
        'All ranks of a job in a few series, where monitel_otlp.configure(ranks="digest") is in use: one process '
        "exports for all. Which rank is slow is in the log records, not in a label.",
        [
            JOB,
            RUNS,
            chosen_stat("step", "Compare", ".", "step_time", "The Stat by which ranks are compared."),
            chosen_stat("stat", "Any Stat", ".", "loss", "Shown at the bottom."),
        ],
        {
            "Percentiles over the ranks": [
                lines(
                    "Mean of each rank, over the ranks",
                    "s",
                    "The highest alone is far off: one rank. The 99th percentile too: many.",
                    query(slowest, f"{WHO} highest"),
                    query(stat("step", what="ranks_p99"), f"{WHO} 99th percentile"),
                    query(median, f"{WHO} median"),
                    query(stat("step", what="ranks_min"), f"{WHO} lowest"),
                ),
                lines(
                    "Slowest rank against the median",
                    "x",
                    "1: no straggler. Its name is in the log records below.",
                    query(f"{slowest} / {median}", WHO),
                    warn=1.5,
                    alarm=2,
                ),
                lines(
                    "Ranks in the digest",
                    "short",
                    "Those that had a window of the Stat, and those that are connected. Fewer than there should be: "
                    "some are dead, late, or cannot reach rank zero and export their own digest.",
                    query(f"sum by (training_run_id) ({heard})", f"{WHO} with a window"),
                    query(f"sum by (training_run_id) (monitel_digest_ranks{{{RUN}}})", f"{WHO} connected"),
                ),
                lines(
                    "Late windows",
                    "short",
                    "A second. They count in the next window: nothing is lost, and means of ranks shift a little.",
                    rate(f"sum by (training_run_id) (rate(monitel_digest_late_total{{{RUN}}}[$__rate_interval]))", WHO),
                ),
            ],
            "Stragglers": [
                log_lines(
                    "Stragglers",
                    "Who became slow or recovered, when, and how much: the score is robust, above 3.5 is slow. "
                    f"{NOT_RUN.format('Loki')}",
                    f"{chosen} |= `training.straggler` {shown}",
                ),
                log_lines(
                    "The slowest rank of each window",
                    f"Always the same one? Then it is the machine. {NOT_RUN.format('Loki')}",
                    f"{chosen} |= `training.slowest` {shown}",
                ),
            ],
            "Any Stat": [
                lines(
                    "Mean over all samples of all ranks, and the ranks' means",
                    "short",
                    "The mean far from the median of the ranks: some are far off, or have many samples.",
                    query(stat("stat"), f"{WHO} mean"),
                    query(stat("stat", what="ranks_p50"), f"{WHO} median"),
                    query(stat("stat", what="ranks_max"), f"{WHO} highest"),
                    query(stat("stat", what="ranks_min"), f"{WHO} lowest"),
                ),
            ],
        },
    )
