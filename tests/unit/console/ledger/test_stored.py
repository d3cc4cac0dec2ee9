"""The stored form of a ledger: everything comes back, and anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.ledger.history import MARKS, Attempt, Earlier, History, fold, run_time
from monitel_otlp.ledger.stored import LIMIT_BYTES, StoredError, decode, encode

HISTORY = History(
    "run \udc80/\n'",
    Earlier(2, {"startup": 3, "step": 5, "lost": 4, "eigene Größe": 1}, ((0, 0), (7, 5))),
    Attempt("name", {"step": 6}, 99, "boot", 98, True, 5, ((5, 0), (2**63 - 1, 6)), 7, 1),
)
STORED = json.loads(encode(HISTORY))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def changed(path: str, value: Any) -> bytes:
    """Return the content with another value at a path."""
    stored = json.loads(encode(HISTORY))
    *parents, last = path.split(".")
    inner = stored
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return json.dumps(stored).encode()


def test_history_comes_back() -> None:
    """All of a history is stored, including ids and names that UTF-8 cannot hold."""
    assert HISTORY == decode(encode(HISTORY))


def test_largest_history_fits() -> None:
    """A history with the most marks and names is far below the limit for a file that is read."""
    line = tuple((2**62 + step, 2**40 + step) for step in range(MARKS))
    activities = {"step": 2**62} | {f"{number} " + "\N{SNOWMAN}" * 1000: 2**62 for number in range(64)}
    history = History("x" * 1000, Earlier(1, activities, line), Attempt("", activities, 1, marks=line))
    content = encode(history)
    assert len(content) < LIMIT_BYTES
    assert run_time(history).elapsed_ns == run_time(decode(content)).elapsed_ns


def test_names_of_many_attempts_are_limited() -> None:
    """Attempts that all have new names, such as the number of an epoch, do not make the file unusable."""
    earlier = Earlier(1, {"step": 1}, ((0, 0), (1, 1)))
    for attempt in range(20):
        own = {"startup": 1, "step": 1, **{f"epoch {attempt}.{number}": 5 + number for number in range(53)}}
        history = decode(encode(History("run", earlier, Attempt(str(attempt), own, 10**9, down_ns=1))))
        assert sum(history.earlier.activities.values()) == sum(earlier.activities.values())
        assert fold(history).activities["step"] == 2 + attempt
        earlier = fold(history)
    assert earlier.activities["other"] > 0
    assert 20 == earlier.activities["down"]
    assert "epoch 19.52" in earlier.activities


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\0" * 100, "is not JSON"),
        (encode(HISTORY)[:-1], "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not a ledger"),
        (b"null", "is not a ledger"),
        (b"{}", "is not a ledger"),
        (b" " * (LIMIT_BYTES + 1), "has more than 1048576 bytes"),
        (changed("version", 2), "has version 2, which a newer monitel has written"),
        (changed("version", True), "has an unknown version"),
        (changed("version", 0), "has an unknown version"),
        (changed("run", 7), "is not a ledger"),
        (changed("earlier.activities.step", -1), "is not a ledger"),
        (changed("earlier.activities.step", 4), "is not a ledger"),  # less than the line
        (changed("earlier.activities.step", 5.0), "is not a ledger"),
        (changed("earlier.activities.step", True), "is not a ledger"),
        (changed("earlier.activities.step", 10**30), "is not a ledger"),
        (changed("earlier.line", [[1, 0], [1, 1]]), "is not a ledger"),
        (changed("earlier.line", [[1, 0, 0]]), "is not a ledger"),
        (changed("earlier.line", [[step, 0] for step in range(MARKS + 1)]), "is not a ledger"),
        (changed("attempt.activities", {str(number): 1 for number in range(300)}), "is not a ledger"),
        (changed("attempt.overlap_ns", 7), "is not a ledger"),  # more than the attempt has lasted
        (changed("attempt.ended", 1), "is not a ledger"),
        (changed("attempt.marks", 1), "is not a ledger"),
    ],
)
def test_other_content_is_refused(content: bytes, message: str) -> None:
    """Damaged content, and content of another version, raises an error that names the problem."""
    with pytest.raises(StoredError) as caught:
        decode(content)
    assert message == str(caught.value)


@given(
    JSON,
    st.sampled_from(
        ["version", "run", *(f"{part}.{name}" for part in ("earlier", "attempt") for name in STORED[part])]
    ),
)
def test_any_json_is_refused_or_adds_up(value: Any, path: str) -> None:
    """Whatever a field holds, no other error is raised, and what is accepted adds up and is not negative."""
    try:
        history = decode(changed(path, value))
    except StoredError:
        return
    run = run_time(history)
    assert sum(run.activities.values()) == run.elapsed_ns
    assert all(duration >= 0 for duration in run.activities.values())
