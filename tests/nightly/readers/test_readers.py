"""A minute of damaged files, with a fixed seed, and inputs that have failed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.nightly.readers import fuzz

if TYPE_CHECKING:
    from tests.support.receiver import Receiver


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_damaged_files(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader fails, and what arrives was recorded, each thing once."""
    monkeypatch.setenv("MONITEL_BLACK_BOX_DIR", "boxes")
    assert 60 == fuzz.fuzz([target], 600.0, 7, most=60)


def test_inputs_that_have_failed(tmp_path: Path, receiver: Receiver) -> None:
    """All files in ``found``, whose names begin with that of their target."""
    for path in sorted(Path(__file__).with_name("found").glob("*.bin")):
        fuzz.read(path.name.partition("-")[0], path.read_bytes(), tmp_path / path.name, receiver.url)


def test_archives() -> None:
    """An input has all files again when it is unpacked."""
    files = {"a/b": b"1\n2\n", "c": b"", "d": bytes(9)}
    assert files == fuzz.unpack(fuzz.pack(files))
