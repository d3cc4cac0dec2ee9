"""Boxes that a running process gives up and cannot remove as usual: a collector must not deliver them once more."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE
from tests.support.scripts import finish, started, write_script
from tests.unit.blackbox.boxes.holders import needs_root

import monitel
from monitel_otlp.boxes.layout import HEADER, LOCK
from monitel_otlp.collection.collector import collect_boxes

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver


def root() -> Path:
    """Return the folder that holds the boxes of this test."""
    return Path(os.environ["MONITEL_BLACK_BOX_DIR"])


def boxes() -> list[Path]:
    """Return the boxes of this test."""
    return sorted(root().glob("*"))


@pytest.mark.parametrize("moved", [False, True], ids=["without its lock", "moved away"])
def test_box_that_is_given_up_is_not_delivered_once_more(
    receiver: Receiver, start: Start, tmp_path: Path, moved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The process goes on and delivers its items itself, wherever the box is then."""
    pipeline = start(export_interval=3600)
    monitel.emit("before")
    (box,) = boxes()
    elsewhere = root() / "elsewhere"
    if moved:
        box.rename(elsewhere)
    else:
        (box / LOCK).unlink()
    with caplog.at_level(logging.WARNING, "monitel.otlp"):
        wait_until(lambda: "black box" in caplog.text, "the warning")
    assert pipeline.force_flush(DEADLINE)
    assert ["before"] == receiver.record_names()
    if moved:
        wait_until(lambda: not (elsewhere / HEADER).stat().st_size, "an empty box")
        elsewhere.rename(box)
    else:
        wait_until(lambda: not boxes(), "no box")
    outcome = collect_boxes(root(), fallback=tmp_path / "fallback")
    assert (0, [], [], []) == (outcome.items, outcome.spools, outcome.deaths, outcome.problems)
    assert [] == boxes()


#: A job that starts as root, and goes on as another user, who may not change the box.
OTHER_USER = """\
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
monitel.emit("before")
os.setuid(65534)
time.sleep(1.5)
monitel.emit("after")
"""


@needs_root
def test_process_with_another_user_id_leaves_nothing_to_deliver(receiver: Receiver, tmp_path: Path) -> None:
    """Its items arrive once, and there is no event of a death."""
    with started(tmp_path, write_script(tmp_path, OTHER_USER), receiver.url) as process:
        assert 0 == finish(process).status
    assert ["after", "before"] == sorted(receiver.record_names())
    assert 1 == len(boxes())
    outcome = collect_boxes(root(), fallback=tmp_path / "fallback")
    assert (0, [], [], []) == (outcome.items, outcome.spools, outcome.deaths, outcome.problems)
    assert [] == boxes()
