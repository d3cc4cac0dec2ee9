"""``monitel top --once`` and ``--json``: the text and the JSON, the terminal's limits, and boxes that are damaged."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.blackbox.collection.dead_boxes import cut_of, make_box
from tests.unit.console.top.noted_jobs import ENDLESS, PATIENCE_S, jobs, looking, ranks_of, until

from monitel_otlp.__main__ import main
from monitel_otlp.boxes.box_lock import acquire
from monitel_otlp.commands import top as top_command
from monitel_otlp.ledger.screen import Screen, columns_of
from monitel_otlp.spool.folder import Folder
from monitel_otlp.table.plain_text import table_lines
from monitel_otlp.top.as_json import look_as_json
from monitel_otlp.top.rank import Look, RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

#: The fields of a row in JSON.
FIELDS = {
    *("time", "pid", "rank", "step", "state", "death", "last_seen", "host", "namespace", "service", "run", "attempt"),
    *("world_size", "step_age_seconds", "steps_per_second", "step_seconds_p50", "step_seconds_p99", "data_share"),
    *("wait_share", "goodput", "value_name", "value", "activity", "activity_age_seconds", "stage", "waits", "event"),
    *("verdict", "box", "problem"),
}
#: Sets one step, with a loss of NaN, and waits to be ended.
STILL = """
pipeline = monitel_otlp.configure(service_name=SERVICE, spool_dir="spool")
loss = Stat("loss", [MEAN], 60.0)
loss.add(float("nan"))
monitel.emit(EVENT, ratio=float("inf"))
monitel.set_step(7)
print("ready", flush=True)
sys.stdin.readline()
"""


def still(service: str, event: str = "epoch") -> str:
    """Return a script with these names."""
    return f"SERVICE, EVENT = {service!r}, {event!r}\n{STILL}"


def plain(_name: str) -> Mapping[str, str]:
    """Return no variables."""
    return {}


class Top:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.stderr = ""

    def text(self, *arguments: str) -> str:
        """Return stdout of ``monitel top --once``."""
        self._capsys.readouterr()
        assert 0 == main(["top", "--once", "--interval", "0.1", *arguments])
        stdout, self.stderr = self._capsys.readouterr()
        return stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the rows in JSON."""
        found: list[dict[str, Any]] = json.loads(self.text("--json", *arguments), parse_constant=pytest.fail)
        return found


@pytest.fixture
def top(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_boxes: Path) -> Top:
    """The command, on a stream without columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    return Top(capsys)


def until_recorded(check: Callable[[Any], object]) -> None:
    """Wait until the boxes hold what a test needs."""
    with looking() as ranks:
        until(ranks, lambda look: look.ranks and check(look.ranks))


def test_once_and_json_agree(tmp_path: Path, top: Top) -> None:
    """Two ranks, of which one is dead."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}) as running:
        until_recorded(lambda ranks: all(each.data is not None and each.value is not None for each in ranks))
        running["1"].process.kill()
        running["1"].process.wait(PATIENCE_S)
        rows = top.rows()
        assert [FIELDS, FIELDS] == [row.keys() for row in rows]
        pids = [running[name].process.pid for name in ("0", "1")]
        assert [(0, pids[0], "alive"), (1, pids[1], "dead")] == [
            (row["rank"], row["pid"], row["state"]) for row in rows
        ]
        assert all("llm" == row["service"] and 2 == row["world_size"] for row in rows)
        assert rows[0]["steps_per_second"] > 0
        assert 0 < rows[0]["data_share"] < 1
        assert rows[1]["value"] in {note.loss for note in running["1"].notes()}
        assert "epoch.start" == rows[0]["event"]["name"]
        assert {"dead"} == {row["verdict"]["kind"] for row in rows}
        lines = top.text().splitlines()
        assert "1 job, 2 processes: 1 alive, 1 dead" == lines[0]
        assert lines[2].startswith("llm, 2 of 2 ranks")
        assert lines[3].startswith("dead: rank 1")
        header, alive, dead, remark = lines[4:8]
        assert ["RANK", "PID", "STATE", "STEP"] == header.split()[:4]
        assert ["0", str(pids[0]), "alive"] == alive.split()[:3]
        assert ["1", str(pids[1]), "dead", str(rows[1]["step"])] == dead.split()[:4]
        assert "cause unknown" in remark
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", "\n".join(lines))
        assert max(map(columns_of, lines)) <= 160


def test_sort_and_filter(tmp_path: Path, top: Top) -> None:
    """A filter leaves rows out; a number is sorted with the largest first, a name with the first."""
    with ranks_of(tmp_path, {"0": still("llm"), "1": ENDLESS}):
        until_recorded(lambda ranks: len(ranks) == 2 and all(each.step is not None for each in ranks))
        assert [0, 1] == [row["rank"] for row in top.rows()]
        steps = [row["step"] for row in top.rows("--sort", "step")]
        assert steps == sorted(steps, reverse=True)
        assert [1] == [row["rank"] for row in top.rows("--filter", "RANK 1")]
        assert [] == top.rows("--filter", "no such name")
        with pytest.raises(SystemExit, match="2"):
            top.text("--sort", "nothing")
        with pytest.raises(SystemExit, match="2"):
            top.text("--interval", "0")


def test_numbers_that_json_does_not_have_are_strings(tmp_path: Path, top: Top) -> None:
    """As in the JSON of autopsy; unknown values are null."""
    with jobs(tmp_path, {"job": still("llm")}, plain):
        until_recorded(lambda ranks: ranks[0].value is not None)
        (row,) = top.rows()
        assert ("NaN", "loss", "Infinity") == (row["value"], row["value_name"], row["event"]["attributes"]["ratio"])
        assert (None, None, None, 7) == (row["rank"], row["world_size"], row["step_seconds_p50"], row["step"])


def test_names_from_a_job_cannot_control_the_terminal(tmp_path: Path, top: Top) -> None:
    """Control characters are escaped, and wide characters take two columns."""
    with jobs(tmp_path, {"job": still("\x1b[2J日本語🚀", event="\x1b]0;x\x07" + "宽" * 40)}, plain):
        until_recorded(lambda ranks: ranks[0].event is not None)
        text = top.text("--filter", "日本")
        assert "\x1b" not in text
        assert "\\x1b[2J日本語🚀" in text
        assert max(map(columns_of, text.splitlines())) <= 160


@pytest.mark.parametrize("columns", [20, 40, 80, 160])
def test_narrow_terminals_have_fewer_columns(
    tmp_path: Path, top: Top, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """The number and the state of a rank are left out last."""
    with ranks_of(tmp_path, {"0": still("llm")}):
        until_recorded(lambda ranks: ranks[0].step == 7)
        monkeypatch.setenv("COLUMNS", f"{columns}")
        lines = top.text().splitlines()
        assert max(map(columns_of, lines)) <= columns
        header = next(line for line in lines if "RANK" in line).split()
        assert "STATE" in header
        assert (columns >= 40, columns >= 160) == ("STEP/S" in header, "ACTIVITY" in header)


def test_colours_only_in_a_terminal(tmp_path: Path, own_boxes: Path) -> None:
    """A real pseudo-terminal of 100 columns, with and without NO_COLOR."""
    with ranks_of(tmp_path, {"0": still("llm")}):
        until_recorded(lambda ranks: ranks[0].step == 7)
        coloured, bare = (in_terminal({"TERM": "xterm", **more}) for more in ({}, {"NO_COLOR": "1"}))
        assert "\x1b[32malive" in coloured
        assert "\x1b" not in bare
        assert "alive" in bare
        assert max(map(columns_of, bare.splitlines())) < 100


def in_terminal(env: Mapping[str, str]) -> str:
    """Return what ``monitel top --once`` prints to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    given = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    command = [sys.executable, "-m", "monitel_otlp", "top", "--once"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**given, **env}) as process:
        os.close(theirs)
        found = b""
        while select.select([ours], [], [], PATIENCE_S)[0]:
            try:
                found += os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
        assert 0 == process.wait(PATIENCE_S)
    os.close(ours)
    return found.decode()


def test_json_without_once_is_a_line_for_each_look(tmp_path: Path, own_boxes: Path) -> None:
    """The lines end with the reader."""
    with ranks_of(tmp_path, {"0": ENDLESS}) as running:
        command = [sys.executable, "-m", "monitel_otlp", "top", "--json", "--interval", "0.5"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            looks = [json.loads(process.stdout.readline()) for _ in range(4)]
            process.stdout.close()
            assert 0 == process.wait(PATIENCE_S)
            assert "" == process.stderr.read()
        assert [running["0"].process.pid] * 4 == [row["pid"] for look in looks for row in look]
        steps = [look[0]["step"] for look in looks]
        assert steps == sorted(steps)
        assert steps[0] < steps[-1]


def test_json_without_once_prints_new_problems_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A problem is printed when it appears, and not again while it lasts."""
    found = [(), ("a\x1b is damaged",), ("a\x1b is damaged",), ("a\x1b is damaged", "b is damaged")]

    class MadeLooks:
        """The looks, and then an interruption by the user."""

        def __init__(self, targets: list[str], show: str | None) -> None:
            self._problems = iter(found)
            assert ([], None) == (targets, show)

        def look(self) -> Look:
            problems = next(self._problems, None)
            if problems is None:
                raise KeyboardInterrupt
            return Look(0, (), problems)

        def pause(self, seconds: float) -> None:
            assert 1 == seconds

        def close(self) -> None:
            pass

    monkeypatch.setattr(top_command, "Ranks", MadeLooks)
    assert 130 == main(["top", "--json"])
    printed = capsys.readouterr()
    assert ["[]"] * 4 == printed.out.splitlines()
    assert [
        "monitel: a\\x1b is damaged",
        "monitel: b is damaged",
        "monitel: interrupted",
    ] == printed.err.splitlines()


def test_nothing_is_said_to_be_found_without_boxes(top: Top) -> None:
    """The text of autopsy, and an empty list."""
    assert top.text().startswith("no black boxes of this user on this machine, of running or dead processes; ")
    assert [] == top.rows()


def test_screen_without_its_library_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--once`` and ``--json`` do not need it."""
    for name in list(sys.modules):
        if name.partition(".")[0] in {"textual", "rich"} or name.startswith("monitel_otlp.terminal"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert 1 == main(["top"])
    assert "pip install 'monitel-otlp[top]'" in capsys.readouterr().err
    assert 0 == main(["top", "--once", "--interval", "0.1"])
    assert 0 == main(["top", "--once", "--json", "--interval", "0.1"])


@pytest.mark.parametrize("files", ["header", "cut-a", "cut-b", "cut-a cut-b", "context", "events-a"])
def test_damaged_box_leaves_the_other_rows(tmp_path: Path, own_boxes: Path, files: str) -> None:
    """Nothing raises, and a row shows what cannot be read where it is needed."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": still("llm")}) as running:
        until_recorded(lambda ranks: all(each.value is not None for each in ranks))
        running["1"].process.kill()
        running["1"].process.wait(PATIENCE_S)
        (box,) = (each for each in own_boxes.iterdir() if each.name.startswith(f"{running['1'].process.pid}-"))
        before = {file: (box / file).read_bytes() for file in files.split()}
        # Without a second cut the process may have been killed in its first one.
        unreadable = "header" == files or ("cut-a cut-b" == files and all(before.values()))
        for step in (2, -1):
            for file, content in before.items():
                (box / file).write_bytes(content[::step])
            with looking(own_boxes) as ranks:
                ranks.look()
                rows = {row.pid: row for row in ranks.look().ranks}
            assert {each.process.pid for each in running.values()} == {*rows}
            assert RankState.ALIVE is rows[running["0"].process.pid].state
            row = rows[running["1"].process.pid]
            assert RankState.DEAD is row.state
            assert unreadable == bool(row.problem)


@pytest.mark.parametrize(
    "hostile",
    [
        {"context": {"activity": 3}},
        {"context": {"waits": [(1, 2)], "step": "7", "goodput": "all"}},
        {"context": {"activity": ("data", "long"), "thread": "main"}},
        {"context": {"stage": ("forward", True)}},
        {"context": 7},
        {"counters": [("training.time", 1)]},
        {"time_ns": "now"},
        {"number": "first"},
        {"state": b"xx"},
        {"windows": b"yy"},
    ],
    ids=str,
)
def test_values_of_other_types_are_a_problem_of_their_row(
    tmp_path: Path, own_boxes: Path, hostile: dict[str, Any]
) -> None:
    """The checksums are right. The process runs: this one holds the lock."""
    box = make_box(own_boxes, tmp_path / "spool", cut=cut_of(**hostile))
    folder = Folder.open(box)
    lock = acquire(folder)
    try:
        with looking(own_boxes) as ranks:
            ranks.look()
            look = ranks.look()
    finally:
        lock.release()
        folder.close()
    (row,) = look.ranks
    assert RankState.ALIVE is row.state
    assert json.loads(look_as_json(look, look.ranks))
    assert "\n".join(table_lines(look, Screen(), 160))


def test_box_that_is_removed_by_hand_is_left_out_or_gone(tmp_path: Path, own_boxes: Path) -> None:
    """Between two looks, and while it is open."""
    with ranks_of(tmp_path, {"0": still("llm")}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: look.ranks[0].step == 7)
        running["0"].process.kill()
        running["0"].process.wait(PATIENCE_S)
        shutil.rmtree(own_boxes)
        (row,) = ranks.look().ranks
        assert row.state in {RankState.DEAD, RankState.ENDED}
        assert 7 == row.step
