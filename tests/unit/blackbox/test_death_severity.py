"""The severity of ``process.died``: a Pool ends its workers by SIGTERM, without a fault of the job."""

import signal

import pytest

from monitel.blackbox.activity import Doing
from monitel.blackbox.death import Death, End
from monitel.blackbox.process import Owner


@pytest.mark.parametrize(
    ("number", "step", "severity"),
    [(signal.SIGTERM, None, 9), (signal.SIGTERM, 7, 21), (signal.SIGKILL, None, 21), (None, None, 21)],
)
def test_helper_that_sigterm_has_ended_is_not_a_fault(number: int | None, step: int | None, severity: int) -> None:
    """A process with a step, and another or an unknown end, is one."""
    owner = Owner("host", "", "", "7", "0")
    death = Death(owner, End(signal=number), (1, "heartbeat"), Doing(step=step), "", None)
    assert severity == death.event().severity
