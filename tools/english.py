"""Find habits of prose that make this project hard to read, in its code and documentation.

``make lint`` prints the count of each habit and fails where one is left. With files or folders as arguments, each place
is printed with its plain form. A line whose words are data ends with ``english: keep`` in a comment.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "exporters", "compose", "docs", "tests", "tools", ".ci")
SINGLE_FILES = (
    *("Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    "setup.py",
)
SUFFIXES = {".py", ".c", ".h", ".md", ".yaml", ".yml", ".toml", ""}
SKIPPED = re.compile(r"egg-info|__pycache__|tools/english\.py$")


class Habit(NamedTuple):
    """A habit: its name, the words that show it, and what to write in their place."""

    name: str
    words: re.Pattern[str]
    plain: str


def _in_prose(name: str, words: str, plain: str) -> Habit:
    return Habit(name, re.compile(rf"\b(?:{words})\b", re.IGNORECASE), plain)


PROSE = (
    _in_prose(
        "said, told", r"(?:is|are|was|were|be|been|being|stays?|it|and) (?:un)?(?:said|told)|said once", "log, report"
    ),
    _in_prose("hear of", r"(?:hears?|heard|hearing) (?:of|from)", "receive, be notified"),
    _in_prose("tell of", r"(?:tells?|says?|knows?|believes?) (?:nothing )?of", "report, describe"),
    _in_prose(
        "is no X",
        r"(?<!there )(?:is|are|was|were|be) (?:(?-i:none)|no(?! longer| more\b| later| earlier| larger| smaller|"
        r" less))",
        "is not a(n) X",
    ),
    _in_prose("a second time does nothing", r"second time (?:does|changes) nothing", "Idempotent."),
    _in_prose("of its own", r"of (?:its|their|our|his|her|your|my|one's) own", "separate, or nothing"),
    _in_prose("also where", r"also (?:where|when|if|while|after|in case)", "even if, including when"),
    _in_prose("as ever", r"(?:as|for) ever|without a word", "as before, forever"),
    _in_prose("likewise", r"likewise", "also, too"),
    _in_prose("comes out of", r"(?:comes?|came) out of|by way of|goe?s? by", "is raised from, via, is sent through"),
    _in_prose("all but", r"all but (?:the|all)", "everything except, only"),
    _in_prose("what becomes of", r"what (?:becomes|became) of", "the noun"),
)
OPENING = Habit(
    "clause as a noun",
    re.compile(r"\A(?:What|Who|Whose|Which|Where|Whether|How|Those|These|They|It|That|One of|The same|Of|From what)\b"),
    "name the thing; a function's docstring begins with a verb",
)
NAMES = (
    Habit("A for per", re.compile(r"\A_?[A-Z]+(?:_[A-Z]+)*_AN?_[A-Z]\w*\Z"), "PER"),
    Habit("_said, _told", re.compile(r"\A_?(?:said|say|told|tell|heard|hear)(?:_\w+)?\Z"), "_warned, _reported"),
)


class Text(NamedTuple):
    """A docstring, a comment, a string, a paragraph or a name, where it begins, and the habits to look for."""

    line: int
    words: str
    habits: tuple[Habit, ...]


def _python(source: str) -> Iterator[Text]:
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            words := ast.get_docstring(node)
        ):
            docstrings.add((node.body[0].lineno, node.body[0].col_offset))
            yield Text(node.body[0].lineno, words, (OPENING, *PROSE))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield Text(token.start[0], token.string, NAMES)
        elif token.type == tokenize.STRING and " " in token.string and token.start not in docstrings:
            yield Text(token.start[0], token.string, PROSE)
    yield from _comments(source, r"(?:^[ \t]*#.*\n)+|#.*$", "# :")


def _comments(source: str, pattern: str, marks: str) -> Iterator[Text]:
    """Yield the comments; lines of one comment are one text, since a habit can lie across their border."""
    for found in re.finditer(pattern, source, re.MULTILINE):
        words = "\n".join(line.strip().lstrip(marks) for line in found[0].splitlines())
        yield Text(source.count("\n", 0, found.start()) + 1, words, PROSE)


def _c(source: str) -> Iterator[Text]:
    return _comments(source, r"/\*(?s:.*?)\*/|//.*|\"(?:\\.|[^\"\n])*\"", "/* ")


def _markdown(source: str) -> Iterator[Text]:
    prose = re.sub(r"^ *```(?s:.*?)^ *```", lambda block: "\n" * block[0].count("\n"), source, flags=re.MULTILINE)
    return _comments(prose, r"(?:^.*\S.*\n?)+", "")


def _lines(source: str) -> Iterator[Text]:
    return (Text(number, words, PROSE) for number, words in enumerate(source.splitlines(), 1))


_READERS: dict[str, Callable[[str], Iterator[Text]]] = {".py": _python, ".c": _c, ".h": _c, ".md": _markdown}


def found_in(path: Path) -> Iterator[tuple[int, Habit, str]]:
    """Yield line, habit and words of each place in a file."""
    source = path.read_text("utf-8")
    lines = source.splitlines()
    suffix = ".py" if source.startswith("#!/usr/bin/env python") else path.suffix
    for text in _READERS.get(suffix, _lines)(source):
        for habit in text.habits:
            for found in habit.words.finditer(text.words.replace("\n", " ")):
                line = text.line + text.words.count("\n", 0, found.start())
                if "english: keep" not in lines[line - 1]:
                    yield line, habit, found[0]


def main(given: list[str]) -> int:
    """Print the places of each habit where something is given, and the counts; return the exit status."""
    counts = Counter({habit.name: 0 for habit in (*PROSE, OPENING, *NAMES)})
    for root in map(Path, given) if given else (ROOT / name for name in FOLDERS + SINGLE_FILES):
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_dir() or path.suffix not in SUFFIXES or SKIPPED.search(str(path)):
                continue
            for line, habit, words in found_in(path):
                counts[habit.name] += 1
                if given:
                    print(f"{path}:{line}: {habit.name}: {words!r} (write: {habit.plain})")
    for name, count in counts.items():
        print(f"{count:5}  {name}")
    return 1 if counts.total() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
