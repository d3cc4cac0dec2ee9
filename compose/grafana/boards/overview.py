"""The board ``monitel / Training overview``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.panels import board, heat_map, lines, repeated, rows, tile
from boards.queries import (
    ALIVE,
    OF_RUN,
    OF_SERVICE,
    RANKS,
    RUN,
    SERVICE,
    WHO,
    Query,
    chosen,
    outstanding,
    query,
    rate,
)
from boards.steps import OF_CURVE, by_step
from boards.variables import NUMBERS, OF_PROCESS, SELECTION, choice, metric, several, split_by

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard

EVERY = "[$__rate_interval]"
HOST = f"{SERVICE} {{{{host_name}}}}"
SYSTEM = "Empty: the job needs monitel_otlp.configure(system=True)."


def spread(expression: str) -> list[Query]:
    """The median over the ranks, and the lowest and the highest of them."""
    by = f"by ({OF_RUN}, $by)"
    return [
        query(f"quantile {by} (0.5, {expression})", f"{WHO} {{{{$by}}}} median"),
        query(f"min {by} ({expression})", f"{WHO} {{{{$by}}}} lowest"),
        query(f"max {by} ({expression})", f"{WHO} {{{{$by}}}} highest"),
    ]


def percentile(q: float, histograms: str) -> Query:
    """A percentile of all samples of a run."""
    return rate(f"histogram_quantile({q}, sum by ({OF_RUN}) ({histograms}))", f"{WHO} p{100 * q:.0f}")


def per_second(counter: str) -> Query:
    """Return the rate of a counter, summed over the ranks of a run."""
    return rate(f"sum by ({OF_RUN}) (rate({counter}{{{RUN}}}{EVERY}))", WHO)


def of_cpus(mode: str) -> str:
    """Return the share of the time of a host's CPUs that they spend in a mode."""
    by = f"sum by ({OF_SERVICE}, host_name)"
    times = "rate(system_cpu_time_seconds_total{%s}" + EVERY + ")"
    return f"({by} ({times % f'{RUN}, {mode}'}) / {by} ({times % RUN}))"


def over_gpus(values: str) -> list[Query]:
    """Return median, lowest and highest value of the GPUs of a service, each of which several ranks may report."""
    gpus = f"max by ({OF_SERVICE}, host_name, hw_id) ({values.replace('%s', RUN)})"
    return [
        query(f"quantile by ({OF_SERVICE}) (0.5, {gpus})", f"{SERVICE} median"),
        query(f"min by ({OF_SERVICE}) ({gpus})", f"{SERVICE} lowest"),
        query(f"max by ({OF_SERVICE}) ({gpus})", f"{SERVICE} highest"),
    ]


def recorded(aggregate: str, legend: str) -> Query:
    """Return an aggregate over all ranks that compose/ranks.yml has recorded, of the chosen Stat."""
    return query(f'training:ranks:{aggregate}{{stat="$recorded", {RUN}}}', f"{WHO} {{{{$by}}}} {legend}")


def make() -> dashboard.Dashboard:
    """Return the board of a run's steps, loss and throughput."""
    rank = several(
        choice("rank", "Rank", "For the panels by rank.", metric=ALIVE, of="training_rank"),
    ).all_value(".*")
    histogram = choice(
        "histogram",
        "Histogram",
        "A Stat with a histogram of its samples.",
        metric=f'{{__name__=~".+_histogram(_.+)?", {RUN}}}',
        of="__name__",
        default="step_time_histogram_seconds",
    )
    loss, step, gradient = (chosen(name) for name in ("loss", "step", "gradient"))
    reached = f"training_step{{{RUN}}}"
    skipped, applied = (
        f"sum by ({OF_RUN}) (rate(training_steps{name}_total{{{RUN}}}{EVERY}))" for name in ("_skipped", "")
    )
    histograms = f"rate({chosen('histogram')}{EVERY})"
    asked = (
        "Empty: the Stat needs the aggregation HISTOGRAM, its process "
        'monitel_otlp.configure(distributions="histogram") or "both", and Prometheus native histograms.'
    )
    counted = "The sum over all ranks, from the counter {}. Evaluation and checkpoints take their time too."
    return board(
        "overview",
        "monitel / Training overview",
        "Does the training go forward, and how fast: loss, steps, throughput and gradient norm over all ranks.",
        [
            *SELECTION,
            rank,
            metric("loss", "Loss", ".*(loss|perplexity|nll).*", "loss_mean", "The loss: a Stat or a logged number."),
            metric(
                "step", "Step time", ".*(step|iter|batch).*_seconds", "step_time_mean_seconds", "The time of a step."
            ),
            metric("gradient", "Gradient norm", ".*(grad|norm).*", "gradient_norm_mean", "The norm of the gradient."),
            histogram,
            choice(
                "recorded",
                "Recorded Stat",
                "A Stat whose aggregates over the ranks are recorded: see compose/ranks.yml.",
                metric=f"training:ranks:means_count{{{RUN}}}",
                of="stat",
                default="step_time",
            ),
            NUMBERS,
            split_by("split", "phase", "layer", *OF_PROCESS),
            metric("metric", "Another metric", ".+", "loss_mean", "Any metric, for the panels at the bottom."),
        ],
        {
            "Now": [
                tile(
                    "Processes",
                    "short",
                    "Processes that have reported within five minutes.",
                    f"count by ({OF_SERVICE}) ({ALIVE})",
                ),
                tile("Step", "short", "The highest of all ranks.", f"max by ({OF_SERVICE}) ({reached})"),
                tile(
                    "Steps in the last five minutes",
                    "short",
                    "Of the median rank. 0: look at the waits, and at the job's log.",
                    f"quantile by ({OF_SERVICE}) (0.5, increase(training_steps_total{{{RUN}}}[5m]))",
                ),
                tile(
                    "Loss, median rank",
                    "short",
                    "Half of the ranks have a lower loss.",
                    f"quantile by ({OF_SERVICE}) (0.5, {loss})",
                ),
                tile(
                    "Windows not finite",
                    "short",
                    "Windows with a NaN or an infinity, of all Stats, in the time shown. Look at the gradient norm "
                    "before the first one.",
                    f"sum by ({OF_SERVICE}) (increase(monitel_stat_nonfinite_total{{{RUN}}}[$__range]))",
                    warn=1,
                ),
                tile(
                    "Items dropped",
                    "short",
                    "Windows, numbers, events and spans lost by processes still alive: see Pipeline health.",
                    f"sum by ({OF_SERVICE}) (monitel_exporter_item_dropped_total{{{RUN}}})",
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
                    query(f"count by ({OF_RUN}) (abs({loss}) == Inf or {loss} != {loss})", WHO),
                ),
                lines(
                    "Samples per second",
                    "cps",
                    counted.format("training.samples"),
                    per_second("training_samples_total"),
                ),
                lines(
                    "Tokens per second",
                    "cps",
                    counted.format("training.tokens"),
                    per_second("training_tokens_total"),
                ),
                lines(
                    "Steps per second",
                    "cps",
                    "Of the median rank, from the counter training.steps.",
                    rate(
                        f"quantile by ({OF_RUN}) (0.5, rate(training_steps_total{{{RUN}}}{EVERY}))",
                        WHO,
                    ),
                ),
                lines(
                    "Share of steps that were skipped",
                    "percentunit",
                    "Steps whose gradients were not finite with mixed precision. A few are usual; all of them: the "
                    "gradient scaler finds no scale, and the training does not go forward.",
                    rate(f"{skipped} / ({skipped} + {applied})", WHO),
                ),
                lines(
                    "Step time",
                    "s",
                    "Ranks that wait for each other have the same step time, the late one too: see Who holds the job "
                    "up.",
                    *spread(step),
                ),
                lines(
                    "Model FLOPs utilization",
                    "percentunit",
                    "Operations of the model per second, as a share of the device's peak.",
                    *spread(f"training_mfu_ratio{{{RUN}}}"),
                ),
                lines("Gradient norm", "short", "It rises before a loss diverges.", *spread(gradient)),
                lines("Step", "short", "The steps that the ranks have reached.", *spread(reached)),
            ],
            "Thousands of ranks: recorded": [
                lines(
                    "$recorded over the ranks",
                    "short",
                    "The means of the ranks in their last window, as one series for all ranks. The rules in "
                    "compose/ranks.yml record them for losses, step times and stages. The panels above read a series "
                    "of each rank, so that they can be split by host, and show Stats that are not recorded.",
                    recorded("means_median", "median"),
                    recorded("means_p99", "p99"),
                    recorded("means_max", "highest"),
                    recorded("means_min", "lowest"),
                ),
                lines(
                    "$recorded, all samples",
                    "short",
                    "The mean of all samples of all ranks in the last minute, and the highest and the lowest sample of "
                    "the last windows. Empty: the Stat needs the aggregations COUNT and SUM, MAX, MIN.",
                    recorded("samples_mean", "mean"),
                    recorded("samples_max", "highest"),
                    recorded("samples_min", "lowest"),
                ),
                lines(
                    "$recorded, ranks",
                    "short",
                    "Ranks with a window in the last five minutes. Fewer than the job has: see Who holds the job up.",
                    recorded("means_count", "ranks"),
                ),
            ],
            "All samples of all ranks": [
                heat_map(
                    "$histogram, heat map",
                    "s",
                    "Samples per second of all selected runs. If the service is in several namespaces, select one. "
                    "A second band: slow ranks, or steps that do something else, such as a checkpoint. A band that "
                    f"moves: all ranks have become slower. {asked}",
                    rate(f"sum by ({OF_SERVICE}) ({histograms})", ""),
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
                lines("Loss by rank", "short", "The highest.", outstanding(chosen("loss", RANKS))),
                lines("Step time by rank", "s", "The slowest.", outstanding(chosen("step", RANKS))),
                lines(
                    "Samples per second by rank",
                    "cps",
                    "The lowest.",
                    outstanding(f"rate(training_samples_total{{{RANKS}}}{EVERY})", most="bottomk", every="1m"),
                ),
                lines("Step by rank", "short", "The last.", outstanding(f"training_step{{{RANKS}}}", most="bottomk")),
            ],
            "By training step": [
                by_step("Loss by step", "short", "Of the median rank.", f"quantile by ({OF_CURVE}) (0.5, {loss})"),
                by_step(
                    "Gradient norm by step",
                    "short",
                    "Of the median rank.",
                    f"quantile by ({OF_CURVE}) (0.5, {gradient})",
                ),
                by_step(
                    "Samples per second by step",
                    "cps",
                    "The sum over all ranks.",
                    f"sum by ({OF_CURVE}) (rate(training_samples_total{{{RUN}}}{EVERY}))",
                    every="1m",
                ),
                by_step("Step time by step", "s", "Of the median rank.", f"quantile by ({OF_CURVE}) (0.5, {step})"),
                repeated(
                    by_step(
                        "$number by step",
                        "short",
                        "A number of monitel.log(), of the median rank.",
                        f"quantile by ({OF_CURVE}) (0.5, {chosen('number')})",
                    ),
                    "number",
                ),
            ],
            "Logged numbers": [
                repeated(
                    lines("$number", "short", "A number of monitel.log(), over all ranks.", *spread(chosen("number"))),
                    "number",
                ),
            ],
            "Another metric": [
                lines("$metric", "short", "The metric chosen above, over all ranks.", *spread(chosen("metric"))),
                lines("$metric by rank", "short", "The highest of the ranks.", outstanding(chosen("metric", RANKS))),
            ],
            "The machines": [
                lines(
                    "CPUs that are busy, the ten busiest hosts",
                    "percentunit",
                    f"Near 100 %: loaders and other processes take time from the training. {SYSTEM}",
                    outstanding(of_cpus('cpu_mode!="idle"'), HOST, every="1m"),
                ),
                lines(
                    "CPUs that wait for disks, the ten highest hosts",
                    "percentunit",
                    f"High: data or checkpoints are on a slow disk. {SYSTEM}",
                    outstanding(of_cpus('cpu_mode="iowait"'), HOST, every="1m"),
                ),
                lines(
                    "Memory of the processes",
                    "bytes",
                    f"Of each rank, without its workers. It rises without end: a leak. {SYSTEM}",
                    *spread(f"process_memory_usage_bytes{{{RUN}}}"),
                ),
                lines(
                    "GPUs: time in which a kernel ran",
                    "percentunit",
                    f"Over all GPUs. Low: they wait for data, for the host or for other ranks. {SYSTEM}",
                    *over_gpus("hw_gpu_utilization_ratio{%s}"),
                ),
                lines(
                    "GPUs: memory in use",
                    "percentunit",
                    f"Over all GPUs. Near 100 %: the next larger batch does not fit. {SYSTEM}",
                    *over_gpus("hw_gpu_memory_usage_bytes{%s} / hw_gpu_memory_limit_bytes{%s}"),
                ),
                lines(
                    "Temperature, the ten hottest GPUs",
                    "celsius",
                    f"A hot GPU lowers its clock, and its rank becomes late. {SYSTEM}",
                    outstanding(
                        f"max by ({OF_SERVICE}, host_name, hw_id) (hw_temperature_celsius{{{RUN}}})",
                        f"{HOST} {{{{hw_id}}}}",
                    ),
                ),
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
