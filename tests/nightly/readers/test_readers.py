"""The targets of the fuzzer with files of real processes, with mutations of them, and with inputs that have failed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.nightly.readers.mutations import mutate_archive, mutate_bytes, mutate_file
from tests.nightly.readers.seeds import make_corpora
from tests.nightly.readers.targets import ARCHIVES, TARGETS, undisturbed, unpack_archive

from monitel_otlp.boxes.layout import CUTS, HEADER, BoxError, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOUND = sorted(Path(__file__).with_name("found").iterdir())
_MUTATIONS = {name: 100 if name in ARCHIVES else 2000 for name in TARGETS}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs for each target."""
    return make_corpora(tmp_path_factory.mktemp("readers"))


@pytest.fixture(autouse=True)
def _undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Relative names in damaged files must not lead into the repository."""
    monkeypatch.chdir(tmp_path)
    with undisturbed():
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_files(corpora: Path, name: str) -> None:
    """Whole, and then with one to three changes."""
    random = Random(7)
    mutate = mutate_archive if name in ARCHIVES else mutate_file
    seeds = [path.read_bytes() for path in sorted((corpora / name).iterdir())]
    for number in range(_MUTATIONS[name]):
        content = seeds[number % len(seeds)]
        for _ in range(0 if number < len(seeds) else random.randrange(1, 4)):
            content = mutate(content, random, lambda part: mutate_bytes(part, random))
        try:
            TARGETS[name](content)
        except BaseException:
            Path(f"{name}-failed").write_bytes(content)
            print(f"the input is in {Path.cwd()}")  # noqa: T201  shown with the failure
            raise


@pytest.mark.parametrize("path", _FOUND, ids=lambda path: path.name)
def test_inputs_that_have_failed(path: Path) -> None:
    """The name of a file begins with that of its target."""
    TARGETS[path.name.partition("-")[0]](path.read_bytes())


def test_mutations_pass_the_checksums(corpora: Path) -> None:
    """A part of those of a box, so that the values behind the checksums are tested."""
    (seed,) = (corpora / "box").iterdir()
    whole = unpack_archive(seed.read_bytes())
    random, passed = Random(7), 0
    for _ in range(300):
        files = unpack_archive(mutate_archive(seed.read_bytes(), random, lambda part: mutate_bytes(part, random)))
        for name in (HEADER, *CUTS):
            if files.get(name, whole[name]) != whole[name]:
                with suppress(BoxError):
                    unpack(files[name], name)
                    passed += 1
    assert 30 < passed < 200
