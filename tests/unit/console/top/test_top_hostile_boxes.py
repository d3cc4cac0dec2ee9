"""Boxes with hostile values and right checksums: every reader shows what it can, or a problem in the row of the box."""

from __future__ import annotations

import json
import marshal
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.nightly.readers.mutations import other_value
from tests.support.scripts import finish, started
from tests.unit.console.autopsy.test_autopsy_damage import KILLED

from monitel_otlp.__main__ import main
from monitel_otlp.autopsy.examination import examine
from monitel_otlp.black_box.contents import read_box
from monitel_otlp.black_box.cut import Cut, newest_cut
from monitel_otlp.black_box.event_journal import _GENERATION, _record
from monitel_otlp.boxes.layout import CUTS, HEADER, JOURNALS, LARGEST_FILE, BoxError, pack, unpack
from monitel_otlp.ledger.screen import Screen
from monitel_otlp.spool.folder import Folder
from monitel_otlp.table.plain_text import table_lines
from monitel_otlp.terminal.detail import Details, detail_lines
from monitel_otlp.top.as_json import look_as_json
from monitel_otlp.top.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("textual", reason="the extra monitel-otlp[top] is not installed")

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m[red]\ud800"
LARGE = 10**5000
_PARTS = ("header", "cut", "state", "event")
_NOW = 1_700_000_000_000_000_000


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The box of a killed process."""
    folder = tmp_path_factory.mktemp("killed")
    script = folder / "train.py"
    script.write_text(KILLED, encoding="utf-8")
    with started(folder, script, env={"MONITEL_BLACK_BOX_DIR": str(folder / "boxes")}) as process:
        finish(process)
    (found,) = (folder / "boxes").iterdir()
    return found


@pytest.fixture
def boxes(killed: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder with that box, and a whole one."""
    root = tmp_path / "boxes"
    root.mkdir(mode=0o700)
    for name in ("4194000-1-0000aa", "4194001-1-0000bb"):
        shutil.copytree(killed, root / name)
        (root / name).chmod(0o700)
    yield root
    for each in root.rglob("*"):
        each.chmod(0o700)


def nested(depth: int) -> list[Any]:
    """Return lists in each other."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def event(**fields: Any) -> tuple[Any, ...]:
    """Return the plain values of an event."""
    plain = {"time": _NOW, "observed": _NOW, "severity": 9, "name": "begin", "body": None, "attributes": {}}
    return (*{**plain, **fields}.values(), 0, b"", b"", 0)


def set_header(box: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace values of the header."""
    (box / HEADER).write_bytes(pack(change(unpack((box / HEADER).read_bytes(), HEADER))))


def set_cut(box: Path, change: Callable[[Cut], Cut]) -> None:
    """Replace values of the newest cut."""
    cut = newest_cut([(box / name).read_bytes() for name in CUTS])
    assert cut is not None
    for name in CUTS:
        (box / name).write_bytes(pack(tuple(change(cut))))


def set_events(box: Path, *plain: Any) -> None:
    """Replace the events."""
    records = [_record(7, 10**6 + number, marshal.dumps(each, 4)) for number, each in enumerate(plain)]
    for name, content in zip(JOURNALS, (b"".join(records), b""), strict=True):
        (box / name).write_bytes(_GENERATION.pack(7) + content)


def in_context(**values: Any) -> Callable[[Path], None]:
    """Return a change of what the process was doing."""
    return lambda box: set_cut(box, lambda cut: cut._replace(context={**cut.context, **values}))


def in_cut(**values: Any) -> Callable[[Path], None]:
    """Return a change of fields of a cut."""
    return lambda box: set_cut(box, lambda cut: cut._replace(**values))


def in_header(**values: Any) -> Callable[[Path], None]:
    """Return a change of fields of the header."""
    return lambda box: set_header(box, lambda header: {**header, **values})


def in_event(**values: Any) -> Callable[[Path], None]:
    """Return a change of an event."""
    return lambda box: set_events(box, event(**values))


HOSTILE: dict[str, Callable[[Path], None]] = {
    "event time of 5000 digits": in_event(time=-LARGE),
    "severity of 5000 digits": in_event(severity=LARGE),
    "attribute of 5000 digits": in_event(attributes={"x": LARGE, "y": -LARGE}),
    "attributes 900 deep": in_event(attributes={"x": nested(900)}),
    "complex number": in_event(attributes={"x": 1j, "y": ..., "z": frozenset([1])}),
    "code object": in_event(attributes={"x": compile("1", "x", "eval")}),
    "keys that are not texts": in_event(body={5: 1.0, (1, 2): 3, None: EVIL}),
    "control characters": in_event(name=EVIL, attributes={EVIL: EVIL}),
    "many attributes": in_event(attributes={f"k{number}": number for number in range(50_000)}),
    "no event": lambda box: set_events(box, 5, (1, 2)),
    "time of a cut": in_cut(time_ns=-LARGE),
    "number of a cut": in_cut(number="x"),
    "activity of a million characters": in_context(activity=("\u65e5" * 10**6, 1.0)),
    "activity that is endless": in_context(activity=(EVIL, float("inf"))),
    "many waits": in_context(waits=[(f"k{number}", 1, 1.0) for number in range(50_000)]),
    "a thread of 5000 digits": in_context(thread=LARGE),
    "goodput": in_context(goodput=EVIL),
    "unknown field": in_header(**{"\x1b]0;owned\x07": 1}),
    "version": in_header(version=EVIL),
    "creation": in_header(created_ns=LARGE),
    "owner": in_header(owner=("h", "b", "n", "../../etc", "1")),
    "folder with NUL": in_header(spool_dir="/a\0b", run="/a\0b"),
    "resource": in_header(resource=b"\xff\xff"),
    "large header": in_header(spool_dir="x" * (2 << 20)),
}


def shown(root: Path) -> str:
    """Return everything that the readers show about the boxes in a folder; it is printable, and JSON is valid."""
    ranks = Ranks([str(root)])
    try:
        look = ranks.look()
    finally:
        ranks.close()
    texts = [line for width in (30, 160) for line in table_lines(look, Screen(), width)]
    assert 2 == len(json.loads(look_as_json(look, look.ranks)))
    for rank in look.ranks:
        found = examine([rank.box], [], stacks=False)
        details = Details(found[0] if found else None, (), look.time_ns)
        texts += [
            "".join(text for text, _ in line.parts) for line in detail_lines(rank, details, Screen(), 80, look.time_ns)
        ]
    for each in ([], ["--json"]):
        output, errors = StringIO(), StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            assert 0 == main(["autopsy", str(root), *each])
        if each:
            json.loads(output.getvalue())
        texts += [*output.getvalue().split("\n"), *errors.getvalue().split("\n"), *look.problems]
    assert all(text.isprintable() for text in texts)
    return "\n".join(texts)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_cost_only_their_box(boxes: Path, name: str) -> None:
    """The other box is shown, the process of the hostile one has a row, and no control character is printed."""
    HOSTILE[name](boxes / "4194000-1-0000aa")
    text = shown(boxes)
    assert "train.loss" in text
    assert "2 processes" in text
    assert "owned\\x07" in text or "owned" not in text


@pytest.mark.parametrize("name", [HEADER, *CUTS, *JOURNALS, "context", "stacks", "request-1-logs"])
def test_huge_file_is_not_read(boxes: Path, name: str) -> None:
    """A file that is larger than any of a box is damaged; at most the largest size is read."""
    path = boxes / "4194000-1-0000aa" / name
    path.touch(mode=0o600)
    os.truncate(path, 8 << 40)  # more than any memory: a reading of the whole file fails
    assert "2 processes" in shown(boxes)


def test_largest_file_is_a_limit_of_the_writer_too(boxes: Path) -> None:
    """A cut as large as a file may be is read; a larger one is not."""
    path = boxes / "4194000-1-0000aa"
    for name in CUTS:
        os.truncate(path / name, LARGEST_FILE)
    folder = Folder.open(path)
    try:
        assert read_box(folder).cut is not None
        os.truncate(path / CUTS[0], LARGEST_FILE + 1)
        with pytest.raises(BoxError, match=r"cut-a is damaged: it has more than 16,777,216 bytes"):
            read_box(folder)
    finally:
        folder.close()


@pytest.mark.parametrize("seed", range(60))
def test_changed_values_cost_only_their_box(boxes: Path, seed: int) -> None:
    """One to three other values in any part of a box, with the right checksums."""
    random = Random(seed)
    box = boxes / "4194000-1-0000aa"
    for _ in range(random.randrange(1, 4)):
        part = random.choice(_PARTS)
        if part == "header":
            set_header(box, lambda header: other_value(header, random))
        elif part == "event":
            set_events(box, other_value(event(attributes={"a": 1, "b": [0.5]}, body={"c": "d"}), random))
        else:
            cut = newest_cut([(killed_cut(box) if name == CUTS[0] else b"") for name in CUTS])
            assert cut is not None
            values = other_value(tuple(cut), random) if part == "cut" else tuple(_other_state(cut, random))
            for name in CUTS:
                (box / name).write_bytes(pack(values))
            break  # the changed values may not make a cut
        if part == "header":
            break
    assert "train.loss" in shown(boxes)


def killed_cut(box: Path) -> bytes:
    """Return the content of a file with a complete cut."""
    return next(content for name in CUTS if (content := (box / name).read_bytes()))


def _other_state(cut: Cut, random: Random) -> Cut:
    return cut._replace(state=marshal.dumps(other_value(marshal.loads(cut.state), random), 4))
