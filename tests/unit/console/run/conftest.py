"""Fixtures of the tests of ``monitel run``."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Let programs of the test inherit the default actions of signals, which ``nohup`` and ``&`` change."""
    ignored = [each for each in (signal.SIGHUP, signal.SIGQUIT) if signal.getsignal(each) is signal.SIG_IGN]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        ignored.append(signal.SIGINT)
    for each in ignored:
        signal.signal(each, signal.SIG_DFL)
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)
