"""A night of kills, see ``tests/processes/blackbox/test_journal_kills.py``."""

from __future__ import annotations

import pytest
from tests.processes.blackbox.test_journal_kills import campaign


@pytest.mark.parametrize("options", [("--kills", "1000"), ("--every", "3")], ids=["jobs", "collectors"])
def test_thousands_of_kills(options: tuple[str, ...]) -> None:
    """A thousand jobs are killed, and seventeen thousand collectors."""
    campaign(*options, timeout=5400)
