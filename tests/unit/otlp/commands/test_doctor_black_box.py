"""``python -m monitel_otlp doctor``: the place of black boxes, their size, and the boxes that wait."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.unit.blackbox.boxes.holders import holding, kill_with_box

from monitel_otlp.boxes import place
from monitel_otlp.boxes.room import Allowance, Room

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Sections = dict[str, dict[str, str]]


@pytest.fixture
def rows(examine: Callable[..., Sections]) -> Callable[[], dict[str, str]]:
    """Return a function that runs the command, and returns the rows that concern all signals."""
    return lambda: examine(status=1)["all signals"]


def test_place_and_size_are_shown(rows: Callable[[], dict[str, str]], own_boxes: Path) -> None:
    """Nothing is made."""
    shown = rows()
    assert shown["black box"].startswith(f"{own_boxes} (")
    assert shown["black box"].endswith(")  (MONITEL_BLACK_BOX_DIR)")
    assert "at most 4,194,304 bytes per process (black_box_size)" == shown["black box size"]
    assert {"killed", "problem"}.isdisjoint(shown)
    assert not own_boxes.exists()


def test_size_is_that_of_the_variable(rows: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of other arguments do not repeat it."""
    monkeypatch.setenv("MONITEL_BLACK_BOX_SIZE", "70000")
    shown = rows()
    assert "at most 70,000 bytes per process (black_box_size)" == shown["black box size"]
    assert not [name for name in shown if name.startswith("black box") and name not in {"black box", "black box size"}]


def test_switched_off_is_shown(rows: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable that does it."""
    monkeypatch.setenv("MONITEL_BLACK_BOX", "0")
    shown = rows()
    assert "off  (MONITEL_BLACK_BOX)" == shown["black box"]
    assert "black box size" not in shown


def test_reason_for_no_box_is_shown_once(
    rows: Callable[[], dict[str, str]], own_boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of somebody else is in the place of the folder."""
    shared = own_boxes / "shm"
    shared.mkdir(parents=True)
    (shared / f"monitel-{os.geteuid()}").symlink_to(own_boxes)
    monkeypatch.delenv("MONITEL_BLACK_BOX_DIR")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(place, "_SHARED_MEMORY", shared)
    shown = rows()
    reason = f"{str(shared / f'monitel-{os.geteuid()}')!r} is a symbolic link, or not a folder: remove it"
    assert f"NONE: {reason}  (default)" == shown["black box"]
    assert "problem" not in shown


def test_lack_of_room_is_shown(rows: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit that is too low."""
    monkeypatch.setattr(Room, "allowance", lambda _self: Allowance(1000, "1 % of the 100000 bytes"))
    expected = "NOT ENOUGH ROOM: at most 1,000 bytes per process (1 % of the 100000 bytes)"
    assert expected == rows()["black box size"]


def test_waiting_boxes_are_shown_with_the_command(rows: Callable[[], dict[str, str]], own_boxes: Path) -> None:
    """Boxes of running processes are not counted."""
    command = f"deliver the telemetry with: monitel replay {own_boxes}"
    with holding(own_boxes):
        assert "killed" not in rows()
        kill_with_box(own_boxes)
        assert f"1 process; {command}" == rows()["killed"]
        kill_with_box(own_boxes).rename(own_boxes / "7-1-0000aa.collected")
        kill_with_box(own_boxes).rename(own_boxes / "7-1-0000ab.corrupt")
        (own_boxes / "notes").touch()
        shown = rows()
    assert f"2 processes; {command}" == shown["killed"]
    assert [
        f"damaged black boxes, which nothing reads: {own_boxes / '7-1-0000ab.corrupt'}",
        f"{str(own_boxes)!r} holds entries that are not black boxes (1), e.g. 'notes'",
    ] == shown["problem"].splitlines()
