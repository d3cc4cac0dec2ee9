"""Costs of exporters for the calling thread: an event, a number, and the add that closes a window.

The OTLP pipeline records to a box in memory that outlives the process, as usual.
"""

import os
import tempfile
import time
from datetime import datetime, timezone
from typing import Any

from peers import six_instruments
from race import Contender, optional, race, timed
from row import Row, report

import monitel
from monitel.stats.definition import TORCHS

_CALLS = 500  # a round; the queues are emptied between rounds
_TRACKED = 20  # calls of a tracker in a round
_SIX_ATTRIBUTES, _EMIT_NS = 6, 6e3
_NUMBER_NS = 2e3
_CLOSE_BUDGET_NS = 5e3
_CLOSE_API_BUDGET_NS = 20e3
_DATA: dict[str, str | int | float] = {"epoch": 3, "loss": 0.25, "phase": "train"}
_MORE = {"done": True, "path": "/checkpoints/17/model", "bytes": 12_345, "seconds": 1.5, "host": "a", "lr": 0.1}
_PEER = "OTel Logger.emit"
_ONE, _TWO = {"loss": 0.25}, {"loss": 0.25, "lr": 1e-4}
_SIX = {**_TWO, "accuracy": 0.9, "norm": 1.5, "tokens": 4096, "scale": 2.0}
_CLOSE = "for stat in stats: stat.add(0.25)"


def stats() -> dict[str, Any]:
    """Stats whose window a single sample fills."""
    return {"stats": [monitel.Stat(f"loss.{n}", TORCHS, 1e9, 1) for n in range(_CALLS)]}


def otel_provider() -> Any:
    """A LoggerProvider with the SDK's own batch processor and an exporter that drops everything at once."""
    logs, export = optional("opentelemetry.sdk._logs"), optional("opentelemetry.sdk._logs.export")
    if logs is None or export is None:
        return None

    success = export.LogRecordExportResult.SUCCESS

    class Drop(export.LogRecordExporter):  # type: ignore[name-defined,misc]  # OpenTelemetry may be missing
        def export(self, batch: object) -> Any:
            return success

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

        def shutdown(self) -> None:
            pass

    provider = logs.LoggerProvider()
    provider.add_log_record_processor(export.BatchLogRecordProcessor(Drop()))
    return provider


def api_path() -> None:
    """The add that closes a window when it is written to the application's own instruments."""
    installed, metrics = optional("monitel_otel"), optional("opentelemetry.sdk.metrics")
    export = optional("opentelemetry.sdk.metrics.export")
    what = "add that closes the window, monitel_otel"
    if installed is None or metrics is None or export is None:
        Row(what, None).put()
        return
    provider = metrics.MeterProvider([export.InMemoryMetricReader()])
    direct = six_instruments(provider.get_meter("bench"), (f"direct.{n}" for n in range(_CALLS)))
    with installed.install(provider):
        contenders = {
            "monitel": timed(_CLOSE, stats, _CALLS),
            "OTel SDK, its six calls alone": timed(
                "for record in direct: record(0.25)", lambda: {"direct": direct}, _CALLS
            ),
        }
        report(what, race(contenders), {"OTel SDK, its six calls alone": None}, most=_CLOSE_API_BUDGET_NS)


def tracker_log(folder: str) -> dict[str, Contender]:
    """The calls of trackers that write to a local folder, as far as they are installed."""
    found = {}
    if wandb := optional("wandb"):
        run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
        found["wandb, offline"] = timed(
            "for _ in range: log({'loss': 0.25, 'lr': 1e-4})",
            lambda: {"log": run.log, "range": range(_TRACKED)},
            2 * _TRACKED,
        )
    if mlflow := optional("mlflow"):
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        mlflow.set_tracking_uri(f"file:{folder}/mlflow")
        found["mlflow, files"] = timed(
            "for _ in range: log({'loss': 0.25, 'lr': 1e-4}, step=3)",
            lambda: {"log": mlflow.log_metrics, "range": range(_TRACKED)},
            2 * _TRACKED,
        )
    return found


def sdk_path() -> None:
    """Measure events, numbers and windows with the OTLP pipeline, as CPU time of the calling thread."""
    otlp = optional("monitel_otlp")
    if otlp is None:
        Row("OTLP pipeline, caller's side", None).put()
        return
    otel = otel_provider()
    event = monitel.Event("epoch", datetime.now(timezone.utc), _DATA)
    with tempfile.TemporaryDirectory() as folder, otlp.configure(spool_dir=folder) as pipeline:

        def calling(code: str, items: int = _CALLS, **names: Any) -> Contender:
            def emptied() -> dict[str, Any]:
                pipeline.force_flush()
                otel.force_flush()
                return {"range": range(_CALLS), **names}

            return timed(code, emptied, items, clock=time.thread_time)

        for number in (0, 3, 6, 10):
            data = dict([*_DATA.items(), *_MORE.items()][:number])
            code = "for _ in range: emit(event_name='epoch', timestamp=time_ns(), attributes=data)"
            costs = race(
                {
                    "monitel": calling("for _ in range: emit('epoch', data)", emit=monitel.emit, data=data),
                    _PEER: calling(code, emit=otel.get_logger("bench").emit, time_ns=time.time_ns, data=data),
                }
            )
            report(f"emit of {number} attributes, OTLP pipeline", costs, {_PEER: 0.5})
            if number == _SIX_ATTRIBUTES:
                report(f"emit of {number} attributes, OTLP pipeline", costs, {}, most=_EMIT_NS)
        costs = race({"monitel": calling("for _ in range: log(event)", log=monitel.log_event, event=event)})
        report("log_event, OTLP pipeline", costs, {})
        for values in (_ONE, _SIX):
            log = calling("for _ in range: log(values)", len(values) * _CALLS, log=monitel.log, values=values)
            what = f"a number of log(), {len(values)} in a call, OTLP pipeline"
            report(what, race({"monitel": log}), {}, most=_NUMBER_NS)
        trackers = tracker_log(folder)
        two = calling("for _ in range: log(values, step=3)", 2 * _CALLS, log=monitel.log, values=_TWO)
        costs = race({"monitel": two, **trackers})
        report("a number of log(), 2 in a call, OTLP pipeline", costs, dict.fromkeys(trackers))
        known = [monitel.Stat(f"loss.{n}", TORCHS, 1e9) for n in range(_CALLS)]
        costs = race({"monitel": calling("for stat in stats: stat.add(0.25); stat.flush()", stats=known)})
        report("add, and a flush that closes the window, OTLP pipeline", costs, {}, most=_CLOSE_BUDGET_NS)


if __name__ == "__main__":
    api_path()
    sdk_path()
