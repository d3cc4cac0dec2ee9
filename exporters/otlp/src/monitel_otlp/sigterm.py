"""SIGTERM handling. Schedulers send SIGTERM some seconds before SIGKILL, and Python's default skips atexit."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal

import monitel
from monitel.os_threads import in_main_thread, start_thread
from monitel.run_events import preempt
from monitel.sigterm import SigtermHandler, is_default
from monitel_otlp.config.launchers import is_launcher
from monitel_otlp.pipeline import EXIT_TIMEOUT

if TYPE_CHECKING:
    from monitel_otlp.pipeline import Pipeline


def handle_sigterm(pipeline: Pipeline, sigterm: bool | Literal["auto"]) -> None:
    """Install a SIGTERM handler that shuts down the pipeline. It is uninstalled when the pipeline ends.

    Args:
        pipeline: The pipeline. It is only flushed if a handler that was installed later calls this one.
        sigterm: With ``"auto"`` no handler is installed outside the main thread, in launchers, and if the application
            or a library handles or ignores SIGTERM.
    """
    automatic = in_main_thread() and is_default() and not is_launcher(sys.orig_argv)
    if automatic if sigterm == "auto" else sigterm:
        handler = SigtermHandler(pipeline.terminate, lambda timeout: _flush(pipeline, timeout), timeout=EXIT_TIMEOUT)
        handler.install()
        pipeline.at_end.append(handler.uninstall)


def _flush(pipeline: Pipeline, timeout: float) -> None:
    """Flush in another thread, because this thread may hold a lock that the flush needs."""
    if os.getpid() != 1:  # process 1 of a container lives on
        preempt()

    def flush() -> None:
        try:
            monitel.flush()
        finally:  # an event handler of the application may raise
            pipeline.force_flush(timeout)

    if (thread := start_thread(flush, "monitel-otlp-flush")) is not None:
        thread.join(timeout)
