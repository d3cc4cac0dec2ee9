"""SIGTERM, which a scheduler sends some seconds before SIGKILL: Python itself ends without atexit."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from monitel_otlp.pipeline import EXIT_TIMEOUT

if TYPE_CHECKING:
    from types import FrameType

    from monitel_otlp.pipeline import Pipeline


def on_sigterm(pipeline: Pipeline) -> None:
    """Shut ``pipeline`` down on SIGTERM, then do what SIGTERM did before.

    Raises:
        ValueError: Not called in the main thread.
    """
    previous = signal.getsignal(signal.SIGTERM)
    begun = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal begun
        if begun and pipeline.ended is None:
            return  # a second one, in the time that the first has
        begun = True
        pipeline.terminate(EXIT_TIMEOUT)
        if callable(previous):
            previous(number, frame)
        elif previous is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
