"""The instruments of other libraries that do what a Stat does, where these are installed."""

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from race import optional


def torch_stat(name: str, max_samples: int = 2**63 - 1) -> Any:
    """A ``torch.monitor.Stat`` with all six aggregations, None without torch."""
    monitor = optional("torch.monitor")
    if monitor is None:
        return None
    aggregations = [getattr(monitor.Aggregation, each) for each in ("VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN")]
    return monitor.Stat(name, aggregations, timedelta(days=1000), max_samples)


def prometheus_summary() -> Any:
    """A ``prometheus_client.Summary``, its cheapest instrument with count and sum, None without the library."""
    prometheus = optional("prometheus_client")
    return None if prometheus is None else prometheus.Summary("loss", "A loss.", registry=None)


def otel_meter() -> Any:
    """A meter of the OpenTelemetry SDK with a reader that sends nothing, None without the SDK."""
    metrics, export = optional("opentelemetry.sdk.metrics"), optional("opentelemetry.sdk.metrics.export")
    if metrics is None or export is None:
        return None
    return metrics.MeterProvider([export.InMemoryMetricReader()]).get_meter("bench")


def six_instruments(meter: Any, names: Iterable[str]) -> list[Callable[[float], None]]:
    return [
        record
        for name in names
        for record in (
            meter.create_counter(f"{name}.count").add,
            meter.create_up_down_counter(f"{name}.sum").add,
            *(meter.create_gauge(f"{name}.{each}").set for each in ("mean", "value", "max", "min")),
        )
    ]


def one_logger_iteration() -> Callable[[], None] | None:
    """The start and end of an iteration by nv-one-logger, without an exporter; None without the library and PyYAML."""
    configs, telemetry = optional("nv_one_logger.api.config"), optional("nv_one_logger.training_telemetry.api.config")
    providers = optional("nv_one_logger.training_telemetry.api.training_telemetry_provider")
    callbacks: Any = optional("nv_one_logger.training_telemetry.api.callbacks")
    if configs is None or telemetry is None or providers is None or callbacks is None:
        return None
    nowhere = {"log_level": "CRITICAL", "log_file_path_for_info": os.devnull, "log_file_path_for_err": os.devnull}
    job = configs.OneLoggerConfig(
        application_name="bench", world_size_or_fn=1, session_tag_or_fn="bench", logger_config=nowhere
    )
    provider = providers.TrainingTelemetryProvider.instance().with_base_config(job)
    provider.configure_provider()
    callbacks.on_app_start()
    provider.set_training_telemetry_config(
        telemetry.TrainingTelemetryConfig(
            perf_tag_or_fn="bench", global_batch_size_or_fn=32, log_every_n_train_iterations=10**9
        )
    )
    callbacks.on_train_start(train_iterations_start=0, train_samples_start=0)

    def iteration() -> None:
        callbacks.on_training_single_iteration_start()
        callbacks.on_training_single_iteration_end()

    return iteration
