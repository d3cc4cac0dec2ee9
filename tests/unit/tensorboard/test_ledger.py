"""The ledger in TensorBoard: seconds of each activity and the goodput over the steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel_tensorboard import install
from monitel_tensorboard.ledger import LedgerCharts, LoggedLedger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., str]

SECOND_NS = 10**9


def ledger() -> monitel.Ledger:
    """Return the ledger of the process."""
    found = monitel.ledger()
    assert found is not None
    return found


def test_activities_and_goodput_are_charts(tmp_path: Path, read: Any) -> None:
    """The last point of each activity has its seconds at the last step, and they add up to the elapsed time."""
    with install(tmp_path):
        with monitel.activity("init"):
            pass
        for step in (5, 6, 7):
            monitel.set_step(step)
            with monitel.activity("my own/evaluation"):
                pass
        before = ledger()
    after = ledger()
    found = read(tmp_path, ledger=True)
    tags = {f"training.time/{name}" for name in ("startup", "init", "step", "my own/evaluation")}
    assert {*tags, "training.goodput"} == set(found)
    last = {tag: points[-1][1] for tag, points in found.items()}
    assert {7} == {points[-1][0] for points in found.values()}
    single = 1 + 1e-6  # TensorBoard stores numbers of 32 bits
    assert before.elapsed_ns / SECOND_NS / single <= sum(last[tag] for tag in tags)
    assert sum(last[tag] for tag in tags) <= after.elapsed_ns / SECOND_NS * single
    for name in ("step", "my own/evaluation"):
        low, high = (book.activities[name] / SECOND_NS for book in (before, after))
        assert low / single <= last[f"training.time/{name}"] <= high * single
    low, high = before.activities["step"] / after.elapsed_ns, after.activities["step"] / before.elapsed_ns
    assert low / single <= last["training.goodput"] <= high * single


def test_process_without_ledger_has_no_charts(tmp_path: Path, read: Any) -> None:
    """Without a step and an activity, nothing is known."""
    with install(tmp_path) as installed:
        monitel.log({"loss": 0.5})
        assert installed.writer.flush()
    assert {} == read(tmp_path, ledger=True)
    assert {"loss": [(0, 0.5)]} == read(tmp_path)


def test_nothing_is_written_before_the_first_step(tmp_path: Path, read: Any) -> None:
    """A numbered point would be in front of the steps. At the end of a process without steps there is one."""
    with install(tmp_path) as installed:
        with monitel.activity("evaluation"):
            monitel.flush()
        assert installed.writer.flush()
        assert {} == read(tmp_path, ledger=True)
    found = read(tmp_path, ledger=True)
    assert {"training.time/startup", "training.time/evaluation", "training.time/other"} == set(found)
    assert [[0]] * 3 == [[step for step, _ in points] for points in found.values()]


def test_flush_writes_the_first_points(tmp_path: Path, read: Any) -> None:
    """The points are in the file before the end of the run."""
    with install(tmp_path) as installed:
        monitel.set_step(3)
        assert installed.writer.flush()
        assert [3] == [step for step, _ in read(tmp_path, ledger=True)["training.time/step"]]


def test_steps_never_fall_and_seconds_only_rise(tmp_path: Path, read: Any) -> None:
    """A step that goes back stays where it was."""
    with install(tmp_path) as installed:
        for step in (10, 4, 11):
            monitel.set_step(step)
            installed._ledger.write()
    points = read(tmp_path, ledger=True)["training.time/step"]
    assert [10, 10, 11, 11] == [step for step, _ in points]
    assert all(one <= two for (_, one), (_, two) in pairwise(points))


def test_points_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked every two seconds: in the first minute every few seconds, after twenty minutes once a minute."""
    entries: list[LoggedLedger] = []
    charts = LedgerCharts(entries.append)
    monitel.set_step(1)
    start = ledger()
    written = []
    for second in range(2, 7200, 2):
        monkeypatch.setattr(
            monitel, "ledger", lambda second=second: replace(start, elapsed_ns=second * SECOND_NS, activities={})
        )
        before = len(entries)
        charts.write_if_due()
        written += [second] * (len(entries) - before)
    gaps = [two - one for one, two in pairwise(written)]
    assert (2, [2] * 18, [60] * 50) == (written[0], gaps[:18], gaps[-50:])
    assert sorted(gaps) == gaps


def test_last_point_at_exit_has_the_shutdown(tmp_path: Path, read: Any, run_script: Run) -> None:
    """A script that ends without uninstall(), in which nothing else was logged."""
    output = run_script(
        "import sys\n"
        "import monitel, monitel_tensorboard.ledger\n"
        "monitel_tensorboard.ledger._SHARE = 1  # no points between the first and the last ones\n"
        "installed = monitel_tensorboard.install(sys.argv[1])\n"
        "for step in range(4):\n"
        "    monitel.set_step(step)\n"
        "    with monitel.activity('data'):\n"
        "        pass\n"
        "    installed.writer.flush()\n"
        "print(monitel.ledger().elapsed_ns)\n",
        tmp_path,
    )
    found = read(tmp_path, ledger=True)
    names = {"startup", "data", "step", "shutdown"}
    assert {*(f"training.time/{name}" for name in names), "training.goodput"} == set(found)
    total = sum(points[-1][1] for tag, points in found.items() if tag != "training.goodput")
    assert int(output) / SECOND_NS <= total * (1 + 1e-6)
    assert {3} == {points[-1][0] for points in found.values()}
    assert [0, 3] == [step for step, _ in found["training.time/step"]]


@pytest.mark.parametrize("steps", [False, True])
def test_forked_child_has_charts_from_its_first_step_on(
    tmp_path: Path, read: Any, run_script: Run, *, steps: bool
) -> None:
    """The scalars of a child have no time of its parent."""
    run_script(
        "import multiprocessing, sys\n"
        "import monitel, monitel_tensorboard\n"
        "monitel_tensorboard.install(sys.argv[1])\n"
        "def work():\n"
        "    with monitel.activity('data'): pass\n"
        f"    if {steps}:\n"
        "        monitel.set_step(9)\n"
        "    monitel.emit('child', number=1)\n"
        "    monitel.flush()\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\n"
        "child.start()\n"
        "child.join()\n",
        tmp_path,
    )
    found = read(tmp_path, ledger=True)
    shown = {*found} - {"training.time/shutdown"}  # from CPython 3.13 on a child of multiprocessing has it
    assert ({"training.time/startup", "training.time/step", "training.goodput"} if steps else set()) == shown
    assert "child/number" in read(tmp_path)
    if steps:
        assert 0 < found["training.time/step"][-1][1] < 60
        assert {9} == {points[-1][0] for points in found.values()}
