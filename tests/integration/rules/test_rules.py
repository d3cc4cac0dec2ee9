"""The alert rules of the stack on made-up data, by ``promtool test rules``: near misses too, within seconds."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import COMPOSE
from tests.integration.stack.filling import RULE_FILES

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")

RULES = [COMPOSE / name for name in RULE_FILES]
FILES = sorted((COMPOSE / "tests").glob("*.yml"))


@pytest.fixture(scope="module")
def promtool() -> str:
    """Return the path of promtool: the variable MONITEL_PROMTOOL, or the program in PATH."""
    program = os.environ.get("MONITEL_PROMTOOL") or shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool: install Prometheus (Debian: the package prometheus), or set MONITEL_PROMTOOL")
    return program


def run(promtool: str, *arguments: object) -> str:
    command = [promtool, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_alerts_fire_and_stay_silent(promtool: str, file: Path) -> None:
    """Each alert has the right labels and texts when it fires, and is silent on what only looks like a fault."""
    run(promtool, "test", "rules", file)


def test_every_alert_has_a_firing_and_a_silent_case() -> None:
    """An alert without tests is found here, and one that does not say what to do."""
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    names = {alert["alert"] for alert in alerts}
    cases: list[dict[str, Any]] = [
        case
        for file in FILES
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
    ]
    assert names == {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert names == {case["alertname"] for case in cases if not case.get("exp_alerts")}
    for alert in alerts:
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description", "dashboard"} == set(alert["annotations"])
