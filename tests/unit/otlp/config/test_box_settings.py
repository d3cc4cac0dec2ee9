"""Arguments of the black box: checked before anything is made, and without effect on a pipeline that has no box."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE

import monitel
import monitel_otlp
from monitel_otlp import attach
from monitel_otlp.boxes.discovery import find_boxes
from monitel_otlp.config.black_box import BoxSettings, box_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"black_box": 1}, TypeError, "black_box must be True or False, got 1"),
    ({"black_box": "no"}, TypeError, "black_box must be True or False, got 'no'"),
    ({"black_box": None}, TypeError, "black_box must be True or False, got None"),
    ({"black_box_dir": 7}, TypeError, "black_box_dir must be a path, got int"),
    ({"black_box_dir": b"boxes"}, TypeError, "black_box_dir must be a path, got bytes"),
    ({"black_box_dir": __file__}, ValueError, "black_box_dir must be a folder, or a new path, got "),
    ({"black_box_dir": f"{__file__}/x"}, ValueError, f"{__file__!r} is a file"),
    ({"black_box_dir": "a\0b"}, ValueError, "black_box_dir must not contain a null character, got 'a\\x00b'"),
    ({"black_box_size": 65_535}, ValueError, "black_box_size must be at least 65536 bytes, got 65535"),
    ({"black_box_size": -1}, ValueError, "black_box_size must be at least 65536 bytes, got -1"),
    ({"black_box_size": 1e6}, TypeError, "black_box_size must be an int, got float: 1000000.0"),
    ({"black_box_size": True}, TypeError, "black_box_size must be an int, got bool: True"),
    ({"black_box_size": "4M"}, TypeError, "black_box_size must be an int, got str: '4M'"),
    ({"black_box_size": None}, TypeError, "black_box_size must be an int, got NoneType: None"),
]


@pytest.mark.parametrize("function", [monitel_otlp.configure, monitel_otlp.LogExporter])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong[0]))
def test_wrong_argument_raises(
    monkeypatch: pytest.MonkeyPatch,
    own_boxes: Path,
    function: Callable[..., object],
    wrong: tuple[dict[str, Any], type[Exception], str],
) -> None:
    """Nothing is started and nothing is made."""
    arguments, error, message = wrong
    monkeypatch.setattr(attach, "_attached", None)
    before = threading.active_count()
    with pytest.raises(error, match=re.escape(message)):
        function(**arguments)
    assert (before, None) == (threading.active_count(), attach._attached)
    assert not own_boxes.exists()


def test_right_arguments_are_kept(tmp_path: Path) -> None:
    """A relative folder is that of the moment, because the application may change its folder later."""
    given = box_settings(black_box=False, black_box_dir="boxes", black_box_size=65_536)
    assert BoxSettings(enabled=False, folder=tmp_path / "boxes", size=65_536) == given
    assert BoxSettings(enabled=True, folder=None, size=4 * 1024 * 1024) == box_settings()
    assert 10**30 == box_settings(black_box_size=10**30).size
    assert Path("/boxes") == box_settings(black_box_dir=_Path()).folder


class _Path(os.PathLike[str]):
    def __fspath__(self) -> str:
        return "/boxes"


@pytest.mark.parametrize("given", ["argument", "variable"])
def test_no_box_is_made_if_it_is_switched_off(
    start: Start, own_boxes: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Not even its folder, while events are emitted and delivered."""
    if given == "variable":
        monkeypatch.setenv("MONITEL_BLACK_BOX", "off")
    pipeline = start(**({"black_box": False} if given == "argument" else {}))
    monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert not own_boxes.exists()


def test_box_is_made_where_the_argument_says(start: Start, own_boxes: Path) -> None:
    """And nowhere else; it is gone after the shutdown."""
    own_boxes.mkdir(0o700)
    pipeline = start(black_box_dir=own_boxes / "here")
    monitel.emit("event")
    assert 1 == len(find_boxes(own_boxes / "here").live)
    assert ["here"] == [each.name for each in own_boxes.iterdir()]
    pipeline.shutdown()
    assert not any((own_boxes / "here").iterdir())
    assert [] == open_below(own_boxes)


def open_below(folder: Path) -> list[str]:
    """Return the paths below a folder that this process has open, removed ones included."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(link.readlink()))
    return [each for each in found if each.startswith(str(folder))]


def test_unusable_folder_is_one_warning(
    start: Start, receiver: Receiver, own_boxes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pipeline works without a box."""
    own_boxes.mkdir()
    own_boxes.chmod(0o777)
    pipeline = start(black_box_dir=own_boxes)
    for _ in range(3):
        monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert 3 * ["event"] == receiver.record_names()
    (warning,) = [each.getMessage() for each in caplog.records if "black box" in each.getMessage()]
    assert f"other users can write to {str(own_boxes)!r}: give a folder to which only you can write" in warning
    assert not any(own_boxes.iterdir())
