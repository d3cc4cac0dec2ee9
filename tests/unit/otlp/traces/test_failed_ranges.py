"""Spans of ranges that an exception leaves."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support.inbox import DEADLINE

from monitel.profiler import record_function

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

ERROR = 2


def test_span_of_a_failed_range_has_status_error(receiver: Receiver, start: Start) -> None:
    """Each range that an exception leaves has its type, and not an argument's; a range that catches it has none."""
    pipeline = start(spans=True)
    failing = record_function("step", {"error.type": "mine"})
    with record_function("retry"), suppress(KeyError), failing, record_function("forward"):
        raise KeyError
    with record_function("after", {"error.type": "mine"}):
        pass
    assert pipeline.force_flush(DEADLINE)
    assert {
        "forward": (ERROR, "KeyError"),
        "step": (ERROR, "KeyError"),
        "retry": (0, None),
        "after": (0, "mine"),
    } == {span.name: (span.status, span.attributes.get("error.type")) for span in receiver.spans()}


INTERRUPTED = """\
from monitel.profiler import record_function
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, spans=True)
with record_function("run"):
    try:
        with record_function("step"):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    with record_function("save"):
        raise OSError
"""


def test_exception_that_ends_the_process_is_exported(receiver: Receiver, train: Run) -> None:
    """The spans of the ranges that it leaves are sent at the exit; Ctrl-C is not an error."""
    train(INTERRUPTED, receiver.url, returncode=1)
    expected = {"step": (0, None), "save": (ERROR, "OSError"), "run": (ERROR, "OSError")}
    assert expected == {span.name: (span.status, span.attributes.get("error.type")) for span in receiver.spans()}
