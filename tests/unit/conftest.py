"""The command ``monitel``, for tests in all folders."""

import pytest
from tests.unit.promises.program import Program


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Program:
    """Return a function that runs a command of ``monitel`` in this process."""
    return Program(capsys, caplog)
