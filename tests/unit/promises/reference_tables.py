"""Tables of the reference pages, which tests compare with what arrives at a receiver."""

import re
from collections.abc import Iterator

from tests.support.paths import ROOT

#: Kind of a data point, and whether a sum is monotonic, by the first words of a cell.
_KINDS: dict[str, tuple[str, bool | None]] = {
    "monotonic sum": ("sum", True),
    "counter": ("sum", True),
    "up-down counter": ("sum", False),
    "sum": ("sum", False),
    "histogram": ("histogram", None),
    "gauge": ("gauge", None),
}


def tables(page: str, *header: str, under: str = "") -> list[list[list[str]]]:
    """Return the rows of each table of a page whose header begins with these cells, each row as a list of cells.

    Args:
        page: Path below ``docs/reference``.
        *header: The first cells of the table's header.
        under: Search only the section with this title, up to the next title of any level.
    """
    text = (ROOT / "docs/reference" / page).read_text("utf-8")
    if under:
        text = re.split(r"^#+ ", text.split(f"# {under}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        first, _, *rows = (_cells(line) for line in block.splitlines())
        if first[: len(header)] == [*header]:
            found.append(rows)
    assert found, (page, header, under)
    return found


def table(page: str, *header: str, under: str = "") -> list[list[str]]:
    """Return the rows of the only table of a page, or of one of its sections, with this header."""
    (rows,) = tables(page, *header, under=under)
    return rows


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def kind_of(cell: str) -> tuple[str, bool | None]:
    """Return the kind of a data point, and whether it is a monotonic sum, from a cell such as ``counter, `s```."""
    return next(kind for words, kind in _KINDS.items() if cell.startswith(words))


def metrics(*sections: str) -> Iterator[tuple[str, tuple[str, str, bool | None], list[str]]]:
    """Yield name, (kind, unit, monotonic) and attributes of each metric in tables with the header ``kind, unit``.

    The attributes are the words in backticks of the last column.
    """
    for section in sections:
        for name, described, *_, last in table("metrics-and-events.md", "name", "kind, unit", under=section):
            kind, monotonic = kind_of(described)
            unit = re.match(r"[a-z -]+, `([^`]+)`", described)
            for each in code(name):
                yield each, (kind, unit[1] if unit else "", monotonic), code(last)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
