"""The files of the dashboards: generated, and complete."""

import json
import re
import runpy
from pathlib import Path

import pytest
from tests.integration.stack.boards import FOLDER

FILES = sorted(FOLDER.glob("*.json"))
SELECTION = ["namespace", "service", "run"]  # labels of metrics, log records and spans


def test_the_files_are_what_the_code_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change: python compose/grafana/dashboards.py."""
    pytest.importorskip("grafana_foundation_sdk", reason="Grafana's builder library needs Python 3.11")
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    made = runpy.run_path(str(FOLDER.parent / "dashboards.py"))["made"]()
    assert made == {file.name: file.read_text() for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_panel_says_what_it_shows(file: Path) -> None:
    """Each panel has a title, a unit, a description and a query; untested ones and those for histograms are marked.

    Each board has the same first variables; queries, annotations and titles use variables of the board.
    """
    content = json.loads(file.read_text())
    assert file.stem == content["uid"]
    for panel in content["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        assert letters
        (source,) = {target["datasource"]["uid"] for target in panel["targets"]}
        assert source == panel["datasource"]["uid"]
        assert source in {"prometheus", "loki", "tempo"}
        assert (source == "tempo") == ("no test has run it" in panel["description"])
        assert source != "prometheus" or panel["fieldConfig"]["defaults"]["unit"]
        of_histograms = "$histogram" in json.dumps(panel["targets"])
        for needed in ("HISTOGRAM", 'distributions="histogram"'):
            assert of_histograms == (needed in panel["description"])
    names = [variable["name"] for variable in content["templating"]["list"]]
    assert SELECTION == names[: len(SELECTION)]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(content)))
    assert set() == {name for name in used - set(names) if not name.startswith("__")}
    assert names == [name for name in names if name in used]
