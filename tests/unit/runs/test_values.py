"""The values of a run as they are stored: rarely, in limited size, added up, and never in the way of a job."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from monitel.runs.stored import LIMIT_BYTES, StoredError
from monitel.runs.values import LONGEST_TEXT, MOST, RunValues, Value, ValuesFile, decode, encode

if TYPE_CHECKING:
    from monitel.runs.values import Scalar

COUNTER, STAT = Value("samples", (), "", 8, 2, "process"), Value("loss.count", (), "", 4, 2, "pipeline")
GAUGE = Value("loss.mean", (), "", 0.5, 2)
NOW = RunValues(config={"rate": 0.5}, values=(GAUGE, STAT, COUNTER))
VALUES = RunValues(
    "process",
    99,
    {"training.world_size": 2, "host.name": "n04"},
    {"rate": 1e-4, "name": "größer \udc80/\n'", "dropout": None, "on": True},
    (
        Value("loss.mean", (("last", True), ("split", "train")), "", 0.25, 98),
        Value("samples", (), "{sample}", 160, 99, "process", 80),
        Value("gradient.norm.max", (), "", math.inf, 97),
    ),
    3,
)


def values_file(attempt: str, latest: RunValues | None = NOW) -> ValuesFile:
    """Return the file of a process with these values."""
    return ValuesFile(attempt, {"training.world_size": 2, "odd": ("a",)}, lambda: latest)


def stored(attempt: str, found: bytes | None, latest: RunValues = NOW) -> bytes:
    """Return the file after a process that has continued the run."""
    each = values_file(attempt, latest)
    each.resume(found)
    content = each.content(last=True)
    assert content is not None
    return content


def numbers(content: bytes) -> dict[str, float]:
    """Return the values in a file by name."""
    return {each.name: each.value for each in decode(content).values}


def test_pause_between_writes_doubles_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of an hour writes about seventy times, and once more at its end."""
    now, each = 0.0, values_file("one")
    written: list[int] = []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for second in range(3600):
        now = float(second)
        if each.content(last=False) is not None:
            written.append(second)
    assert [0, 1, 3, 7, 15, 31, 63, 123, 183] == written[:9]
    assert len(written) < 70
    assert each.content(last=True) is not None


def test_attempts_are_added_up_and_the_newest_value_counts() -> None:
    """A process whose values were not stored adds nothing."""
    later = replace(NOW, values=(GAUGE._replace(value=0.25, time_ns=9), STAT, COUNTER), config={"rate": 0.1, "more": 1})
    second = stored("three", stored("one", None), later)
    assert {"samples": 16, "loss.count": 8, "loss.mean": 0.25} == numbers(second)
    assert {"rate": 0.1, "more": 1} == decode(second).config
    assert {"training.world_size": 2, "odd": "('a',)"} == decode(second).attributes


def test_second_pipeline_of_a_process_counts_nothing_twice() -> None:
    """Counters are those of the process; the totals of Stats begin again with the pipeline."""
    first = stored("one", stored("zero", None))
    found = stored("one", first, replace(NOW, values=(STAT, COUNTER._replace(value=20))))
    assert {"samples": 28, "loss.count": 12, "loss.mean": 0.5} == numbers(found)


def test_values_that_cannot_be_read_do_not_stop_the_ledger() -> None:
    """An error of the application's objects is not raised, and the file is not written any more."""

    def fail() -> RunValues:
        raise RuntimeError

    each = ValuesFile("one", {}, fail)
    assert [None, None] == [each.content(last=last) for last in (False, True)]
    assert values_file("one", None).content(last=True) is None


def test_damaged_values_are_refused_and_replaced() -> None:
    """So are those of another version. The content is in no message."""
    for content, words in {
        b'{"version": 2, "\x1b[2J": ': "is damaged",
        b'{"version": 2, "secret": 2}': "is damaged",
        b'{"version": 3}': "has another version",
        b"x" * (LIMIT_BYTES + 1): "has more than",
    }.items():
        with pytest.raises(StoredError, match=words):
            decode(content)
        assert numbers(stored("two", None)) == numbers(stored("two", content))


def test_size_is_limited_and_what_is_left_out_is_counted() -> None:
    """Long texts are cut; beyond the limits the last values are left out."""
    values = tuple(Value(f"layer.{number}", (), "", 0.5, 1) for number in range(3 * MOST))
    config: dict[str, Scalar] = {f"option.{number}": "\N{SNOWMAN}" * 5000 for number in range(2 * MOST)}
    content = encode(replace(VALUES, values=values, config=config, left_out=0))
    found = decode(content)
    assert len(content) <= LIMIT_BYTES
    assert values[: len(found.values)] == found.values
    assert len(values) - len(found.values) + len(config) - len(found.config) == found.left_out > 3 * MOST
    assert {1000} == {len(str(each)) for each in found.config.values()}


def test_long_texts_that_differ_are_stored_as_texts_that_differ() -> None:
    """The end of a long text is replaced by its length and a checksum, and is not replaced again by a later attempt."""
    longest = LONGEST_TEXT * "x"
    texts: dict[str, Scalar] = {
        "longest": longest,
        "first": f"{longest}1",
        "second": f"{longest}2",
        "third": f"{longest}1 ",
        "surrogate": f"{longest}\udc80",
        "number": 10**2000,
    }
    found = decode(encode(replace(VALUES, config=texts, attributes=texts)))
    assert found.config == found.attributes
    assert (longest, texts["number"]) == (found.config["longest"], found.config["number"])
    assert len(texts) == len(set(found.config.values()))
    assert str(found.config["first"]).startswith("x" * 900)
    assert "... (1,001 characters, SHA-256 " in str(found.config["first"])
    assert found == decode(encode(found))
