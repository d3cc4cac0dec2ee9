"""The four distributions: their folders, packages, and what each of their files must contain."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Distribution(NamedTuple):
    """A distribution: its name, its folder in the repository, and its import package."""

    name: str
    folder: str
    package: str

    @property
    def file_name(self) -> str:
        """The name as it is in the names of sdists and wheels."""
        return self.name.replace("-", "_")

    def extensions(self) -> list[str]:
        """Return the names of the C extensions, from their sources."""
        src = ROOT / self.folder / "src"
        return sorted(str(path.relative_to(src).with_suffix("")) for path in src.rglob("*_c.c"))

    def modules(self) -> list[str]:
        """Return the paths of all Python modules, relative to ``src``."""
        src = ROOT / self.folder / "src"
        return sorted(str(path.relative_to(src)) for path in src.rglob("*.py"))


CORE = Distribution("monitel", ".", "monitel")
EXPORTERS = tuple(
    Distribution(f"monitel-{name}", f"exporters/{name}", f"monitel_{name}") for name in ("otel", "otlp", "tensorboard")
)
DISTRIBUTIONS = (CORE, *EXPORTERS)


def of_file(path: Path) -> Distribution:
    """Return the distribution that an sdist or a wheel belongs to."""
    name = path.name.split("-", 1)[0]
    for each in DISTRIBUTIONS:
        if each.file_name == name:
            return each
    raise SystemExit(f"{path.name}: expected an sdist or a wheel of one of {', '.join(e.name for e in DISTRIBUTIONS)}")
