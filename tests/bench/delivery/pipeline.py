"""Costs of exporters for the calling thread: an event, a number, and the add that closes a window.

The OTLP pipeline records to a box in memory that outlives the process, as usual.
"""

import tempfile
import time
from datetime import datetime, timezone
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from peers import six_instruments
from race import Contender, optional, race, timed
from row import report

import monitel
import monitel_otel
import monitel_otlp
from monitel.stats.definition import TORCHS

_CALLS = 500  # a round; the queues are emptied between rounds
_TRACKED = 20  # calls of a tracker in a round
_SIX_ATTRIBUTES, _EMIT_NS = 6, 6e3
_NUMBER_NS = 2e3
_CLOSE_BUDGET_NS = 5e3
_CLOSE_API_BUDGET_NS = 20e3
_DATA: dict[str, str | int | float] = {"epoch": 3, "loss": 0.25, "phase": "train"}
_MORE = {"done": True, "path": "/checkpoints/17/model", "bytes": 12_345, "seconds": 1.5, "host": "a", "lr": 0.1}
_PEER, _SIX_CALLS, _TRACKER = "OTel Logger.emit", "OTel SDK, its six calls alone", "wandb, offline"
_TWO = {"loss": 0.25, "lr": 1e-4}
_SIX = {**_TWO, "accuracy": 0.9, "norm": 1.5, "tokens": 4096, "scale": 2.0}


class Drop(LogRecordExporter):
    def export(self, batch: object) -> Any:
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True

    def shutdown(self) -> None:
        pass


def api_path() -> None:
    """Measure the add that closes a window when it is written to the application's own instruments."""
    provider = MeterProvider([InMemoryMetricReader()])
    direct = six_instruments(provider.get_meter("bench"), (f"direct.{n}" for n in range(_CALLS)))

    def full() -> dict[str, Any]:
        return {"stats": [monitel.Stat(f"loss.{n}", TORCHS, 1e9, 1) for n in range(_CALLS)]}

    with monitel_otel.install(provider):
        contenders = {
            "monitel": timed("for stat in stats: stat.add(0.25)", full, _CALLS),
            _SIX_CALLS: timed("for record in direct: record(0.25)", lambda: {"direct": direct}, _CALLS),
        }
        costs = race(contenders)
    report("add that closes the window, monitel_otel", costs, {_SIX_CALLS: None}, most=_CLOSE_API_BUDGET_NS)


def sdk_path() -> None:
    """Measure events, numbers and windows with the OTLP pipeline, as CPU time of the calling thread."""
    otel = LoggerProvider()
    otel.add_log_record_processor(BatchLogRecordProcessor(Drop()))
    with tempfile.TemporaryDirectory() as folder, monitel_otlp.configure(spool_dir=folder) as pipeline:

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
        event = monitel.Event("epoch", datetime.now(timezone.utc), _DATA)
        costs = race({"monitel": calling("for _ in range: log(event)", log=monitel.log_event, event=event)})
        report("log_event, OTLP pipeline", costs, {})
        for values in ({"loss": 0.25}, _TWO, _SIX):
            log = calling("for _ in range: log(values, step=3)", len(values) * _CALLS, log=monitel.log, values=values)
            contenders = {"monitel": log, **(tracker(folder) if values is _TWO else {})}
            what = f"a number of log(), {len(values)} in a call, OTLP pipeline"
            report(what, race(contenders), dict.fromkeys(contenders.keys() - {"monitel"}), most=_NUMBER_NS)
        known = [monitel.Stat(f"loss.{n}", TORCHS, 1e9) for n in range(_CALLS)]
        costs = race({"monitel": calling("for stat in stats: stat.add(0.25); stat.flush()", stats=known)})
        report("add, and a flush that closes the window, OTLP pipeline", costs, {}, most=_CLOSE_BUDGET_NS)


def tracker(folder: str) -> dict[str, Contender]:
    """Provide a tracker that writes to a local folder, if it is installed."""
    wandb = optional("wandb")
    if wandb is None:
        return {}
    run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    names = {"log": run.log, "values": _TWO, "range": range(_TRACKED)}
    return {_TRACKER: timed("for _ in range: log(values)", lambda: names, 2 * _TRACKED)}


if __name__ == "__main__":
    api_path()
    sdk_path()
