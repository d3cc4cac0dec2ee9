"""Pages of the documentation that start processes or train for seconds, and an example that lasts until the exit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.doc_pages import page_parameters, run_page
from tests.unit.test_docs import LASTING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripts import Run


@pytest.mark.parametrize("page", page_parameters(processes=True))
def test_page_runs(
    page: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page's blocks run in order, in one namespace and an empty folder, and print what the page shows."""
    run_page(page, capsys, monkeypatch)


def test_docstring_example_that_lasts_until_the_exit_runs(run: Run) -> None:
    """The pipeline of an exporter ends with the main thread."""
    test = f"import doctest, {LASTING} as module; print(doctest.testmod(module))"
    assert "TestResults(failed=0, attempted=6)\n" == run("-c", test, fresh=True).stdout
