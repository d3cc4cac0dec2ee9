"""The command ``monitel``, for tests in all folders."""

import pytest
from tests.unit.promises.program import Program


@pytest.fixture
def program(caplog: pytest.LogCaptureFixture) -> Program:
    return Program(caplog)
