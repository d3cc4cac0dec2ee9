"""``python -m monitel ledger``: where the time of a run went."""

import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from tests.support.commands import Program
from tests.unit.console.made_processes import START, S, store_run

from monitel.console.ledger import ledger_lines
from monitel.console.runs import Run
from monitel.runs.history import Attempt, RunTime
from monitel.text import Screen, columns_of

pytestmark = pytest.mark.usefixtures("utc")

END = START + 7980 * S
NOW = END + 723 * S


def store(root: Path, run: str, seconds: dict[str, float], *, last_ns: int = END, ended: bool = True) -> None:
    activities = {name: round(each * S) for name, each in seconds.items()}
    store_run(root, run, Attempt("one", activities, last_ns, status="completed" if ended else ""))


def test_table_in_a_narrow_terminal() -> None:
    """Text that does not fit is wrapped, cut, or left out from the right."""
    seconds = {"step": 30.0, "waiting for the object store": 60.0, "init": 9.6, "sync": 0.4}
    activities = {name: round(each * S) for name, each in seconds.items()}
    run = RunTime("run\n7", activities, 1, START + 100 * S)
    expected = """\
run         run\\n7
started     2026-01-02 03:04:05
state       killed or hung: its last heartbeat was
            at 2026-01-02 03:05:45, 2 h 23 min ago
attempts    1
goodput     30.0 %

activity                  share        time
step                       30 %        30 s
waiting for the object..   60 %       1 min
init                       10 %       9.6 s
sync                       <1 %      400 ms
total                     100 %  1 min 40 s

60 % of the time went into the activity "waiting
for the object store\""""
    shown = Run(run, outcome="killed or hung")
    assert expected.splitlines() == ledger_lines(shown, Screen(50), NOW)
    for width in (20, 21, 30, 40, 60):  # bars go first, then the times
        lines = ledger_lines(shown, Screen(width), NOW)
        assert max(map(columns_of, lines)) <= width
        assert ["30", "60", "10", "<1", "100"] == re.findall(r" (\S+) %(?:  |$)", "\n".join(lines), re.MULTILINE)[-5:]


def test_bars_are_readable_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character that stdout has not would be escaped, as six."""
    run = Run(RunTime("run-7", {"step": S}, 1, NOW))
    for encoding, bar in (("utf-8", "█"), ("latin-1", "#")):
        monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), encoding))
        assert any(40 * bar in line for line in ledger_lines(run, Screen(), NOW))


def test_latest_run_of_a_folder_is_shown(program: Program, tmp_path: Path) -> None:
    """The option takes precedence over MONITEL_SPOOL_DIR, and that over the default folder."""
    for folder in ("option", "variable", "state/monitel"):
        for run, last_ns in (("older", END - 1), (folder, END), ("oldest", END - 2)):
            store(tmp_path / folder, run, {"step": 1.0, "data": 1.0}, last_ns=last_ns)
    variable = {"MONITEL_SPOOL_DIR": "variable"}
    latest = "run         {} (the latest of 3 runs)\n"
    assert program("ledger", env=variable).stdout.startswith(latest.format("variable"))
    assert latest.format("option") in program("ledger", "--spool-dir", "option", env=variable).stdout
    printed = program("ledger").stdout
    assert printed.startswith(latest.format("state/monitel"))
    assert printed.endswith("\n50 % of the time went into waiting for data\n")
    assert program("ledger", "older").stdout.startswith("run         older\n")


def test_run_without_an_id_is_named_by_its_start(program: Program, tmp_path: Path) -> None:
    """The list of runs shows it, and it selects the run; a start that several runs have is refused."""
    store(tmp_path / "state/monitel", "", {"step": 5.0})
    store(tmp_path / "state/monitel", "other", {"step": 1.0}, last_ns=END + 1)
    start = "2026-01-02 05:17:00"
    assert f"  {start}" in program("ledger", "x", status=1).stderr.splitlines()
    assert program("ledger", start).stdout.startswith(f"run         without an id\nstarted     {start}\n")
    store(tmp_path / "state/monitel", "", {"step": 5.0})
    assert "2 runs without an id have started at" in program("ledger", start, status=1).stderr


def test_unknown_run_lists_the_latest_runs(program: Program, tmp_path: Path) -> None:
    """The message names the given id, the folders and twenty runs, the latest first."""
    for number in range(25):
        store(tmp_path / "runs", f"run-{number}", {"step": 2.0}, last_ns=END + number, ended=number != 24)
    printed = program("ledger", "run-\x1b]0;x\x07", "--spool-dir", "runs", status=1)
    assert "" == printed.stdout
    first, *listed, last = printed.stderr.splitlines()
    assert "monitel: there is no run 'run-\\x1b]0;x\\x07'; the runs below 'runs' are" == first
    assert [f"  run-{number}" for number in range(24, 4, -1)] == listed
    assert "  and 5 older ones" == last
