"""The board ``monitel / Pipeline health``: the telemetry of the telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.panels import board, lines
from boards.queries import ALIVE, OF_RUN, OF_SERVICE, RANK_OF, RUN, SERVICE, WHO, query, rate
from boards.variables import SELECTION

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard


def make() -> dashboard.Dashboard:
    """Return the board of the pipeline's self-metrics."""

    def of(metric: str) -> str:
        return f"{metric}{{{RUN}}}"

    every = "[$__rate_interval]"
    attempts = "monitel_export_duration_seconds"
    times = f"rate({of(f'{attempts}_bucket')}{every})"
    return board(
        "pipeline",
        "monitel / Pipeline health",
        "Does the telemetry arrive, and what does it cost? Drawn from monitel's self-metrics.",
        SELECTION,
        {
            "What arrives": [
                lines(
                    "Delivered per second",
                    "cps",
                    "Windows, numbers, log records and spans that a backend has acknowledged.",
                    rate(
                        f"sum by ({OF_SERVICE}, signal) (rate({of('monitel_exporter_item_exported_total')}{every}))",
                        f"{SERVICE} {{{{signal}}}}",
                    ),
                ),
                lines(
                    "Processes",
                    "short",
                    "Processes that have reported within five minutes.",
                    query(f"count by ({OF_RUN}) ({ALIVE})", WHO),
                ),
            ],
            "What is lost": [
                lines(
                    "Dropped so far",
                    "short",
                    "By reason, of processes still alive. rejected: the backend refused it, it is in rejected-*.log in "
                    "the spool. queue_full: the memory is full, and the disk takes nothing. spool_full: the backend "
                    "was away for too long. docs/explanation/reliability.md has all reasons.",
                    query(
                        f"sum by ({OF_SERVICE}, signal, error_type) ({of('monitel_exporter_item_dropped_total')})",
                        f"{SERVICE} {{{{signal}}}} {{{{error_type}}}}",
                    ),
                ),
                lines(
                    "Left out of Stats so far",
                    "short",
                    "Windows whose sum is not finite are left out of the total, samples beyond max_samples out of all.",
                    query(
                        f"sum by ({OF_SERVICE}) ({of('monitel_stat_nonfinite_total')})", f"{SERVICE} windows not finite"
                    ),
                    query(
                        f"sum by ({OF_SERVICE}) ({of('monitel_stat_discarded_total')})", f"{SERVICE} samples discarded"
                    ),
                ),
            ],
            "What waits": [
                lines(
                    "Items that wait in memory",
                    "short",
                    "Of the five fullest processes. It falls to nearly nothing at each export. If it only rises, the "
                    "backend does not answer: run monitel doctor with the variables of the job.",
                    query(f"topk(5, {ALIVE})", RANK_OF),
                ),
                lines(
                    "Bytes that wait on disk",
                    "bytes",
                    "Of the five fullest processes. What has waited for a minute is there, and what has no endpoint. "
                    "It is delivered when the backend is back, or by monitel replay.",
                    query(f"topk(5, {of('monitel_spool_size_bytes')})", RANK_OF),
                ),
            ],
            "What it takes": [
                lines(
                    "Time of an attempt, 95th percentile",
                    "s",
                    "Coarse: the buckets end at 10 ms, 100 ms and 1 s.",
                    rate(
                        f"histogram_quantile(0.95, sum by ({OF_SERVICE}, le, signal) ({times}))",
                        f"{SERVICE} {{{{signal}}}}",
                    ),
                ),
                lines(
                    "Attempts per second",
                    "reqps",
                    "Of all processes together: what the Collector has to answer.",
                    rate(
                        f"sum by ({OF_SERVICE}, signal) (rate({of(f'{attempts}_count')}{every}))",
                        f"{SERVICE} {{{{signal}}}}",
                    ),
                ),
            ],
        },
    )
