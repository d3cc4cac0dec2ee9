"""Output of the commands: every line without control characters; arguments that name nothing."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from monitel.console.main import main
from monitel.text import show, warn

if TYPE_CHECKING:
    import pytest


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
