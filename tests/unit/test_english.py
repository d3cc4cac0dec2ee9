"""Plain English: habits of prose that make code and documentation hard to read are in none of the project's texts.

A failure names the file, the words, and what to write in their place.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

FOLDERS = ("src", "exporters", "compose", "docs", "tests", ".ci")
SUFFIXES = {".py", ".c", ".h", ".md", ".yaml", ".yml", ".toml", ""}
LEFT_OUT = re.compile(r"egg-info|__pycache__|test_english\.py$")

#: What to write, by the words in whose place it belongs.
PROSE = {
    r"(?:is|are|was|were|be|been|being|stays?|it|and) (?:un)?(?:said|told)|said once": "log, report",
    r"(?:hears?|heard|hearing) (?:of|from)": "receive, be notified",
    r"(?:tells?|says?|knows?|believes?) (?:nothing )?of": "report, describe",
    r"(?<!there )(?:is|are|was|were|be) (?:(?-i:none)|no(?! longer| more\b| later| earlier| larger| smaller| less))": (
        "is not a(n) X"
    ),
    r"second time (?:does|changes) nothing": "Idempotent.",
    r"of (?:its|their|our|his|her|your|my|one's) own": "separate, or nothing",
    r"also (?:where|when|if|while|after|in case)": "even if, including when",
    r"(?:as|for) ever|without a word": "as before, forever",
    r"likewise": "also, too",
    r"(?:comes?|came) out of|by way of|goe?s? by": "is raised from, via, is sent through",
    r"all but (?:the|all)": "everything except, only",
    r"what (?:becomes|became) of": "the noun",
}
_ANY_PROSE = re.compile(rf"\b(?:{'|'.join(PROSE)})\b", re.IGNORECASE)
_OPENING = re.compile(
    r'"""(?:What|Who|Whose|Which|Where|Whether|How|Those|These|They|It|That|One of|The same|Of|From what)\b'
)
_NAME = re.compile(
    r"(?<!file\.)\b_?(?:[A-Z]+(?:_[A-Z]+)*_AN?_[A-Z]\w*|(?:said|say|told|tell|heard|hear)(?:_\w+)?)\b(?=\s*[=(:,)])"
)
_CODE_BLOCK = re.compile(r"^ *```(?s:.*?)^ *```", re.MULTILINE)
_TEXTS = {
    ".py": re.compile(r'"""(?s:.*?)"""|"(?:\\.|[^"\\\n])*"|(?:^[ \t]*#.*\n)+|#.*', re.MULTILINE),
    ".c": re.compile(r'/\*(?s:.*?)\*/|//.*|"(?:\\.|[^"\\\n])*"'),
}
_TEXTS[".h"] = _TEXTS[".c"]
_LINE_BREAK = re.compile(r"\n[\s#*>]*")


def texts(suffix: str, source: str) -> str:
    """Return the docstrings, comments, strings and paragraphs of a file, each on one line."""
    if suffix in _TEXTS:
        return "\n".join(_LINE_BREAK.sub(" ", text) for text in _TEXTS[suffix].findall(source))
    if suffix == ".md":
        return "\n".join(_LINE_BREAK.sub(" ", text) for text in _CODE_BLOCK.sub("", source).split("\n\n"))
    return source


def habits(suffix: str, source: str) -> Iterator[tuple[str, str]]:
    for found in _ANY_PROSE.finditer(texts(suffix, source)):
        yield found[0], next(plain for words, plain in PROSE.items() if re.fullmatch(words, found[0], re.IGNORECASE))
    if suffix == ".py":
        yield from ((found[0], "name the thing; a verb in a function") for found in _OPENING.finditer(source))
        yield from ((found[0], "PER; _warned, _reported") for found in _NAME.finditer(_TEXTS[suffix].sub("", source)))


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("Makefile", "setup.py"))
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and not LEFT_OUT.search(str(path)):
                yield path


def test_texts_are_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {words!r} (write: {plain})"
        for path in files()
        for words, plain in habits(path.suffix, path.read_text("utf-8"))
    ]
    assert [] == found
