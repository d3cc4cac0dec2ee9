"""``monitel top`` in a real terminal on a job of four ranks; pictures of it are kept, and the guide shows them."""

import io
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.conftest import ROOT
from tests.processes.console.tmux import Terminal, needs_tmux, terminal
from tests.support.checks import wait_until
from tests.support.scripts import started, wait_until_ready, write_script

pytest.importorskip("textual", reason="the extra monitel[top] is not installed")
pytestmark = needs_tmux

PICTURES = ROOT / "build" / "pictures"
WIDTH, HEIGHT = 160, 12
#: Steps of 80 ms in five stages. Rank 2 takes 20 ms longer for its data, and the others wait for it in ``sync``.
TRAIN = """
import random
rank = int(os.environ["RANK"])
pipeline = monitel_otlp.configure(service_name="my-training", spool_dir="spool")
loss = monitel.stat("train.loss")
stages = {"data": 5, "forward": 20, "backward": 30, "sync": 20, "optimizer": 5}
if rank == 2:
    stages |= {"data": 25, "sync": 0}
timers = {name: monitel.stat("training.stage.duration", attributes={"training.stage": name}) for name in stages}
random.seed(rank)
print("ready", flush=True)
while not os.path.exists("../go"):
    time.sleep(0.001)
next_s = time.monotonic()
for step in range(1, 10**6):
    monitel.set_step(step)
    for name, milliseconds in stages.items():
        begin = time.monotonic()
        next_s += milliseconds / 1e3
        with monitel.activity("data" if name == "data" else "step"):
            time.sleep(max(next_s - begin, 0))
        timers[name].add(time.monotonic() - begin)
    loss.add(2.3 / (1 + step / 400) + random.gauss(0, 0.02))
    if step == 60:
        monitel.emit("checkpoint.saved", step=step)
"""


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
    with ExitStack() as stack:
        own_boxes.mkdir(mode=0o700)
        for rank in range(4):
            folder = tmp_path / f"rank{rank}"
            folder.mkdir()
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4"}
            run = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=run-7", "MONITEL_BLACK_BOX_DIR": str(own_boxes)}
            process = stack.enter_context(
                started(folder, write_script(folder, TRAIN), env={**variables, **run}, fresh=True)
            )
            wait_until_ready(process)
        (tmp_path / "go").touch()  # the ranks make their steps together
        wait_until(lambda: 4 == len([*own_boxes.glob("*-*")]), "four boxes")
        top = [sys.executable, "-m", "monitel", "top", str(own_boxes)]
        screen = stack.enter_context(terminal(tmp_path, *top, width=WIDTH, height=HEIGHT))
        seen = screen.until_shown("late rank: rank 2 takes", " ms longer than the others in data", " checkpoint.s")
        late = re.search(r"takes ([\d.]+) ms longer", seen)
        assert late is not None
        assert 14 < float(late[1]) < 26
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
