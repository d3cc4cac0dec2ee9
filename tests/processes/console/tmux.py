"""A real terminal, of a separate tmux server: its screen can be read, and keys can be pressed."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support.checks import wait_for
from tests.support.inbox import DEADLINE

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux: apt-get install tmux")
_SETTINGS = """\
set -g default-terminal "screen-256color"
set -g status off
set -g escape-time 0
"""


class Terminal:
    """A terminal that runs one program, in the tmux server that the first arguments name."""

    def __init__(self, server: list[str], env: Mapping[str, str]) -> None:
        self._server, self._env = server, env

    def tmux(self, *arguments: str) -> str:
        ended = subprocess.run(
            [*self._server, *arguments], env=self._env, capture_output=True, check=True, timeout=DEADLINE
        )
        return ended.stdout.decode()

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, without spaces at their ends."""
        return [line.rstrip() for line in self.tmux("capture-pane", "-p").split("\n")]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def escapes(self) -> str:
        return self.tmux("capture-pane", "-p", "-e", "-N")

    @property
    def pid(self) -> int:
        return int(self.tmux("display-message", "-p", "#{pane_pid}"))

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def until(self, holds: Callable[[], object], expected: str = "the condition") -> None:
        """Wait until a condition holds; a test that fails shows the screen."""
        wait_for(lambda: self.text, lambda _: holds(), expected)

    def until_shown(self, *words: str) -> str:
        return wait_for(lambda: self.text, lambda text: all(word in text for word in words), f"{words} on the screen")


@contextmanager
def terminal(
    folder: Path, *command: str, width: int = 160, height: int = 30, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run a command in a terminal of this size. The folder is its current one, and its home."""
    sanitizers = {name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS") if name in os.environ}
    usual = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(folder)}
    variables = {**usual, **sanitizers, **(env or {})}
    with TemporaryDirectory(prefix="tmux-") as sockets:  # the path of a socket must be short
        settings = Path(sockets, "conf")
        settings.write_text(_SETTINGS, encoding="utf-8")
        server = ["tmux", "-S", str(settings.with_name("socket")), "-f", str(settings)]
        made = Terminal(server, variables)
        try:
            made.tmux("new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(folder), shlex.join(command))
            yield made
        finally:
            subprocess.run([*server, "kill-server"], env=variables, capture_output=True, check=False, timeout=DEADLINE)


@contextmanager
def shell(folder: Path) -> Iterator[Terminal]:
    """Run an interactive bash, with the black boxes of the test, and wait for its prompt."""
    kept = ("MONITEL_BLACK_BOX_DIR", "PYTHONPATH")
    env = {"HISTFILE": "", **{name: os.environ[name] for name in kept if name in os.environ}}
    with terminal(folder, "bash", "--norc", "--noprofile", "-i", width=150, height=50, env=env) as screen:
        screen.until_shown("bash-")
        screen.press("ulimit -c 0", "Enter")
        yield screen
