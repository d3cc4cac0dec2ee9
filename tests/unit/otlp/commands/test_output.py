"""Output of the commands: to a stdout that is closed or full, and without control characters."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE

import monitel_otlp
from monitel_otlp.__main__ import main
from monitel_otlp.commands.output import show, warn

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMANDS = Path(monitel_otlp.__file__).with_name("commands")
_LISTING = ["top --once --interval 0.1", "top --once --json --interval 0.1", "top --json", "autopsy", "autopsy --json"]


def in_shell(command: str, redirection: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of monitel with a redirection of the shell."""
    env: Mapping[str, str] = {**os.environ, "MONITEL_BLACK_BOX_DIR": str(folder), "MONITEL_SPOOL_DIR": str(folder)}
    line = f"{sys.executable} -m monitel_otlp {command} {redirection}"
    return subprocess.run(
        ["sh", "-c", line], env=env, capture_output=True, text=True, check=False, timeout=DEADLINE, cwd=folder
    )


@pytest.mark.parametrize("command", _LISTING)
def test_closed_stdout_is_an_error(tmp_path: Path, command: str) -> None:
    """The command ends with one line on stderr, and the status 1."""
    ended = in_shell(command, ">&-", tmp_path)
    assert (1, "") == (ended.returncode, ended.stdout)
    assert "monitel: stdout is closed: the output of this command needs it\n" == ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", _LISTING)
def test_full_stdout_is_named(tmp_path: Path, command: str) -> None:
    """The message says which output cannot be written, and Python adds nothing at its exit."""
    ended = in_shell(command, ">/dev/full", tmp_path)
    assert 1 == ended.returncode
    assert "monitel: stdout cannot be written: No space left on device\n" == ended.stderr


def test_closed_stderr_hides_only_messages(tmp_path: Path) -> None:
    """The status is that of the command, and no message gets into stdout."""
    ended = in_shell("autopsy 4194303", "2>&-", tmp_path)
    assert (1, "", "") == (ended.returncode, ended.stdout, ended.stderr)


def test_nothing_else_prints() -> None:
    """No command calls print(), so that every line goes through the functions that escape control characters."""
    for path in (*_COMMANDS.glob("*.py"), _COMMANDS.with_name("__main__.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in called, path


def test_control_characters_are_escaped() -> None:
    """In lines and in messages; lines stay lines."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        show("one \x1b]0;owned\x07\ntwo 数据 \x9b")
        warn(ValueError("\x1b[2J"))
    assert "one \\x1b]0;owned\\x07\ntwo 数据 \\x9b\n" == output.getvalue()
    assert "monitel: \\x1b[2J\n" == errors.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [["top", ""], ["top", "--once", "4711", ""], ["autopsy", ""], ["replay", ""], ["cat", ""], ["compare", "a", ""]],
)
def test_empty_target_is_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Such as that of an unset variable: it is not the current folder."""
    try:
        status: object = main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status in {1, 2}
    assert "empty" in capsys.readouterr().err


def test_too_long_path_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the reason and the begin of the path."""
    assert 1 == main(["autopsy", "x" * 5000])
    message = capsys.readouterr().err
    assert "cannot be read: File name too long" in message
    assert "xxxx" in message
    assert len(message) < 300


def test_interval_has_an_upper_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """Python cannot wait that long."""
    with pytest.raises(SystemExit):
        main(["top", "--once", "--interval", "1e300"])
    assert "must be at most 86400, got 1e300" in capsys.readouterr().err
