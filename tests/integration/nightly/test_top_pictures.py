"""``monitel top`` in a real terminal on a job of four ranks; pictures of it are kept, and the guide shows them."""

import io
import re
import sys
from pathlib import Path

import pytest
from tests.integration.nightly.conftest import PICTURES
from tests.processes.console.jobs import IS_LATE, WAITS, loop, ranks
from tests.processes.console.tmux import Terminal, needs_tmux, terminal

pytest.importorskip("textual", reason="the extra monitel[top] is not installed")
pytestmark = needs_tmux

WIDTH, HEIGHT = 160, 12


def keep(screen: Terminal, name: str, folder: Path) -> None:
    """Keep a picture of a screen, without fonts from the network. The folder of the test has the name of a user's."""
    from rich.console import Console
    from rich.text import Text

    PICTURES.mkdir(parents=True, exist_ok=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    shown = screen.escapes.rstrip("\n").replace(str(folder), "/home/me/runs")
    console.print(Text.from_ansi(shown), soft_wrap=True)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="monitel top"), flags=re.DOTALL)
    (PICTURES / name).write_text(picture, encoding="utf-8")


def test_pictures_of_a_late_rank(tmp_path: Path, own_boxes: Path) -> None:
    """The list names the late rank, and the details of that rank have its stages and its stacks."""
    scripts = [loop(IS_LATE if rank == 2 else WAITS, service="my-training") for rank in range(4)]
    top = [sys.executable, "-m", "monitel", "top", str(own_boxes)]
    with ranks(tmp_path, *scripts), terminal(tmp_path, *top, width=WIDTH, height=HEIGHT) as screen:
        screen.until_shown("late rank: rank 2 takes 30.0 ms longer than the others in data", " epoch.start")
        screen.until(lambda: 4 == len(re.findall(r" ms +[\d.]+ ms ", screen.text)), "the times of all ranks")
        screen.press("Down", "Down")
        screen.until(lambda: re.search(r"\x1b\[[0-9;]*7m +2 ", screen.escapes), "the cursor is on rank 2")
        keep(screen, "top.svg", tmp_path)
        screen.resize(WIDTH, 40)
        screen.press("Enter")
        screen.until_shown("rank 2 of 4", "training.stage.duration", "stacks now", "train.py")
        keep(screen, "top-rank.svg", tmp_path)
    for name in ("top.svg", "top-rank.svg"):
        assert (PICTURES / name).stat().st_size < 60_000
