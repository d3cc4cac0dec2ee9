"""HTML and SVG as text. What is not markup already is escaped here, and nowhere else."""

from __future__ import annotations

import html

from monitel.text import cut, escaped, printable

_LONGEST, _LONGEST_NAME = 400, 40  # columns of a line, and of a name


class Markup(str):
    """A text that stands in a page as it is."""

    __slots__ = ()


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element, without its empty attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``."""
    given = {key.rstrip("_").replace("_", "-"): each for key, each in attributes.items() if each != ""}
    written = "".join(f' {key}="{_markup(each)}"' for key, each in given.items())
    return Markup(f"<{name}{written}>{''.join(map(_markup, content))}</{name}>")


def short(name: str, columns: int = _LONGEST_NAME) -> str:
    """Return a name from outside in one line of at most this many columns."""
    return cut(printable(name), columns)


def _markup(value: object) -> Markup:
    """Return a value as markup: its lines without control characters, each cut if it is long."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape("\n".join(cut(escaped(line), _LONGEST) for line in str(value).split("\n"))))
