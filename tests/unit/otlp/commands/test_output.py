"""Output of the commands: every line without control characters; arguments that name nothing."""

from __future__ import annotations

import ast
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import monitel_otlp
from monitel_otlp.__main__ import main
from monitel_otlp.commands.output import show, warn

if TYPE_CHECKING:
    import pytest

_COMMANDS = Path(monitel_otlp.__file__).with_name("commands")


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


def test_empty_target_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as that of an unset variable: it is not the current folder."""
    for arguments in (["top", ""], ["top", "--once", "4711", ""], ["autopsy", ""], ["compare", "a", ""]):
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
    assert ("xxxx" in message, len(message) < 300) == (True, True)
