"""Costs of the OTLP pipeline with a box for the calling thread: an event, a number, the add that closes a window."""

import marshal
import tempfile
import time
from datetime import datetime
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from race import Contender, race, timed
from row import report

import monitel
import monitel_otlp
from monitel import handlers
from monitel.blackbox.record import EVENT
from monitel.stats.definition import TORCHS

_CALLS = 500  # a round; the queues are emptied between rounds
_SIX_ATTRIBUTES, _EMIT_NS, _HALF = 6, 6e3, 0.5
_NUMBER_NS, _CLOSE_NS = 2e3, 5e3
_DATA: dict[str, str | int | float] = {"epoch": 3, "loss": 0.25, "phase": "train"}
_MORE = {"done": True, "path": "/checkpoints/17/model", "bytes": 12_345, "seconds": 1.5, "host": "a", "lr": 0.1}
_PEER, _HANDLER = "OTel Logger.emit", "log_event, one handler"


class Drop(LogRecordExporter):
    def export(self, batch: object) -> Any:
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True

    def shutdown(self) -> None:
        pass


def read(event: monitel.Event) -> object:
    """Do what every handler does."""
    return event.name, event.timestamp.timestamp(), event.data


def main() -> None:
    otel = LoggerProvider()
    otel.add_log_record_processor(BatchLogRecordProcessor(Drop()))
    emit_otel = otel.get_logger("bench").emit
    with monitel.register_event_handler(read):
        one = handlers._handlers
    with tempfile.TemporaryDirectory() as folder, monitel_otlp.configure(spool_dir=folder) as pipeline:
        usual = handlers._handlers

        def calling(code: str, registered: tuple[Any, ...] = usual, **names: Any) -> Contender:
            def emptied() -> dict[str, Any]:
                handlers._handlers = registered
                pipeline.force_flush()
                otel.force_flush()
                return {"range": range(_CALLS), **names}

            return timed(code, emptied, _CALLS, clock=time.thread_time)

        for number in (0, 3, 6, 10):
            data = dict([*_DATA.items(), *_MORE.items()][:number])
            own = calling("for _ in range: emit('epoch', data)", emit=monitel.emit, data=data)
            what = f"emit of {number} attributes, OTLP pipeline"
            if number == _SIX_ATTRIBUTES:
                report(what, race({"monitel": own}), {}, most=_EMIT_NS)
                continue
            code = "for _ in range: emit(event_name='epoch', timestamp=time_ns(), attributes=data)"
            peer = calling(code, emit=emit_otel, time_ns=time.time_ns, data=data)
            report(what, race({"monitel": own, _PEER: peer}), {_PEER: _HALF})

        assert pipeline.engine is not None
        event = monitel.Event("epoch", datetime.now(), _DATA)  # noqa: DTZ005  as torch's
        logs, record = pipeline.engine.box.journals["logs"], event._fields()
        append = "for _ in range: append(kind, dumps(record, 2))"
        costs = race(
            {
                "whole": calling("for _ in range: log(event)", log=monitel.log_event, event=event),
                "append": calling(append, append=logs.append, kind=EVENT, dumps=marshal.dumps, record=record),
                _HANDLER: calling("for _ in range: log(event)", one, log=monitel.log_event, event=event),
            }
        )
        costs["monitel"] = [whole - part for whole, part in zip(costs["whole"], costs["append"], strict=True)]
        report("log_event, OTLP pipeline, without the append", costs, {_HANDLER: 2.0})

        log = calling("for _ in range: log(values, step=3)", log=monitel.log, values={"loss": 0.25})
        report("log() of one number, OTLP pipeline", race({"monitel": log}), {}, most=_NUMBER_NS)
        known = [monitel.Stat(f"loss.{n}", TORCHS, 1e9) for n in range(_CALLS)]
        closing = calling("for stat in stats: stat.add(0.25); stat.flush()", stats=known)
        report("add, and a flush that closes the window, OTLP pipeline", race({"monitel": closing}), {}, most=_CLOSE_NS)


if __name__ == "__main__":
    main()
