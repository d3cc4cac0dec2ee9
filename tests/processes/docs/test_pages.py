"""Pages of the documentation that start processes or train for seconds, and an example that lasts until the exit."""

from pathlib import Path

import pytest
from tests.unit.doc_pages import page_parameters, run_page


@pytest.mark.parametrize("page", page_parameters(processes=True))
def test_page_runs(page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks run in order, in one namespace and an empty folder, and print what the page shows."""
    run_page(page, capsys, monkeypatch)
