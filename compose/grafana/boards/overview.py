"""The board ``monitel / Training overview``."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from boards.panels import board, heat_map, lines, rows, tile
from boards.queries import ALIVE, RANKS, RUN, WHO, Query, outstanding, query, rate, stat
from boards.variables import JOB, RUNS, choice, chosen_stat, several


def spread(expression: str) -> list[Query]:
    """The median over the ranks, and the lowest and the highest of them."""
    by = "by (training_run_id, $by)"
    return [
        query(f"quantile {by} (0.5, {expression})", f"{WHO} {{{{$by}}}} median"),
        query(f"min {by} ({expression})", f"{WHO} {{{{$by}}}} lowest"),
        query(f"max {by} ({expression})", f"{WHO} {{{{$by}}}} highest"),
    ]


def percentile(q: float, histograms: str) -> Query:
    """A percentile of all samples of a run."""
    return rate(f"histogram_quantile({q}, sum by (training_run_id) ({histograms}))", f"{WHO} p{100 * q:.0f}")


def make() -> dashboard.Dashboard:
    """Return the board of a run's steps, loss and throughput."""
    rank = several(
        choice("rank", "Rank", "For the panels by rank.", metric=ALIVE, of="training_rank"),
    ).all_value(".*")
    by = (
        dashboard.CustomVariable("by")
        .label("Split by")
        .description("A curve for each value of this label: an attribute of your Stats, or a label of the process.")
        .values("split,phase,layer,host_name,k8s_pod_name,training_node_rank,training_attempt")
        .current(model.VariableOption(text="split", value="split"))
        .allow_custom_value(True)
    )
    loss, step, throughput, gradient = (stat(name) for name in ("loss", "step", "throughput", "gradient"))
    histograms = f"rate({stat('histogram', what='histogram')}[$__rate_interval])"
    asked = (
        "Empty: the Stat needs the aggregation HISTOGRAM, its process "
        'monitel_otlp.configure(distributions="histogram") or "both", and Prometheus native histograms.'
    )
    return board(
        "overview",
        "monitel / Training overview",
        "Does the training go forward, and how fast: loss, step time, throughput and gradient norm over all ranks.",
        [
            JOB,
            RUNS,
            rank,
            chosen_stat("loss", "Loss", "loss|perplexity|nll", "loss", "The Stat that is the loss."),
            chosen_stat("step", "Step time", "step|iter|batch", "step_time", "The Stat that times a step."),
            chosen_stat("throughput", "Throughput", "throughput|token|sample", "throughput", "The Stat of the speed."),
            chosen_stat("gradient", "Gradient norm", "grad|norm", "gradient_norm", "The Stat of the gradient's norm."),
            chosen_stat(
                "histogram", "Histogram", ".", "step_time", "A Stat with a histogram of its samples.", what="histogram"
            ),
            by,
            chosen_stat("stat", "Another Stat", ".", "loss", "Any Stat, for the panels at the bottom."),
        ],
        {
            "Now": [
                tile("Processes", "short", "Processes that have reported within five minutes.", f"count({ALIVE})"),
                tile(
                    "Since the last step time",
                    "s",
                    "Age of the newest window of step times. A window is a minute by default; above a few of them no "
                    "step has ended: look at the waits, and at the job's own log.",
                    f"time() - max(timestamp({step}))",
                    warn=180,
                    alarm=300,
                ),
                tile("Step time, median rank", "s", "Half of the ranks are faster.", f"quantile(0.5, {step})"),
                tile("Loss, median rank", "short", "Half of the ranks are lower.", f"quantile(0.5, {loss})"),
                tile(
                    "Windows not finite",
                    "short",
                    "Windows with a NaN or an infinity, of all Stats, in the time shown. Look at the gradient norm "
                    "before the first one.",
                    f"sum(increase(monitel_stat_nonfinite_total{{{RUN}}}[$__range]))",
                    warn=1,
                ),
                tile(
                    "Items dropped",
                    "short",
                    "Windows, events and spans lost by processes still alive. Pipeline health has the reasons.",
                    f"sum(monitel_exporter_item_dropped_total{{{RUN}}})",
                    warn=1,
                ),
            ],
            "All ranks": [
                lines("Loss", "short", "Over all ranks. Where it stops, it may be NaN: see beside.", *spread(loss)),
                lines(
                    "Ranks whose loss is not finite",
                    "short",
                    "Empty while all is well. One rank: look at its data and its device. All at once: the training has "
                    "diverged, go back to the checkpoint before.",
                    query(f"count by (training_run_id) (abs({loss}) == Inf or {loss} != {loss})", WHO),
                ),
                lines("Step time", "s", "One rank far above the median holds up all: see Stragglers.", *spread(step)),
                lines(
                    "Steps per second",
                    "short",
                    "Of the median rank. The Stat of the step time needs the aggregation COUNT.",
                    rate(
                        "quantile by (training_run_id) "
                        f'(0.5, rate({{__name__=~"${{step}}_count_total", {RUN}}}[$__rate_interval]))',
                        WHO,
                    ),
                ),
                lines("Throughput", "short", "Of a rank, in the Stat's own unit.", *spread(throughput)),
                lines("Gradient norm", "short", "It rises before a loss diverges.", *spread(gradient)),
            ],
            "All samples of all ranks": [
                heat_map(
                    "$histogram, heat map",
                    "s",
                    "Samples a second, of all runs chosen. A second band: slow ranks, or steps that do something else, "
                    f"as a checkpoint. A band that moves: all have become slower. {asked}",
                    rate(f"sum ({histograms})", ""),
                ),
                lines(
                    "$histogram, percentiles",
                    "s",
                    "One sample in a hundred is above p99. p99 rises and p50 stays: some steps, or ranks, are slow. "
                    f"{asked}",
                    *(percentile(q, histograms) for q in (0.99, 0.9, 0.5)),
                ),
            ],
            "By rank: of those chosen the ten that stand out": [
                lines("Loss by rank", "short", "The highest.", outstanding(stat("loss", RANKS))),
                lines("Step time by rank", "s", "The slowest.", outstanding(stat("step", RANKS))),
                lines(
                    "Throughput by rank", "short", "The lowest.", outstanding(stat("throughput", RANKS), most="bottomk")
                ),
                lines("Gradient norm by rank", "short", "The highest.", outstanding(stat("gradient", RANKS))),
            ],
            "Another Stat": [
                lines("$stat", "short", "The Stat chosen above, over all ranks.", *spread(stat("stat"))),
                lines("$stat by rank", "short", "The highest of the ranks chosen.", outstanding(stat("stat", RANKS))),
            ],
            "Alerts": [
                rows(
                    "Firing",
                    "short",
                    "The alerts of compose/alerts.yml that fire now; the text of each says what to do.",
                    f'ALERTS{{alertstate="firing", {RUN}}}',
                )
            ],
        },
    )
