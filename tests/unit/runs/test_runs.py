"""Runs on the disk: their folders, how many are kept, and their values."""

import os
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from tests.unit.console.made_processes import store_run

from monitel.console.runs import read_runs
from monitel.runs import folder
from monitel.runs.folder import LEDGERS, identify, open_run, store, store_of
from monitel.runs.history import Attempt, History, RunTime, decode, encode
from monitel.runs.values import LIMIT_BYTES, LONGEST_TEXT, MOST, CurrentValues, RunValues, Scalar, Value

IDS = [
    *("1", "a", "A", "a/b", "a\\b", "../../etc/passwd", ".", "..", "\0"),
    *("é", "e\u0301", "\udc80", "\\udc80", "x" * 5000),
]


def folder_of(run: object) -> str:
    return identify({"training.run.id": run}).folder


def test_run_id_is_never_part_of_a_path() -> None:
    """Each id has another folder, whose short name is of lower-case letters and digits; a number is its digits."""
    assert all(re.fullmatch(r"run-[0-9a-f]{40}", folder_of(run)) for run in IDS)
    assert all(folder_of(one) != folder_of(other) for one, other in combinations(IDS, 2))
    assert folder_of("17") == folder_of(17)


def test_oldest_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the runs with the oldest heartbeats go; runs in use and foreign files stay, but nothing open."""
    monkeypatch.setattr(folder, "RUNS", 3)
    busy = open_run(store_of(tmp_path, identify({"training.run.id": "busy"})), "busy")
    store(busy, History(RunTime("busy"), Attempt("name", {"step": 9}, 10)))
    os.utime(busy.path, ns=(0, 0))
    notes = tmp_path / LEDGERS / "notes"
    notes.mkdir()
    os.utime(notes, ns=(1, 1))
    opened: list[int] = []
    for number in range(6):
        path = store_run(tmp_path, f"run {number}", Attempt("name", {"step": 9}, number))
        os.utime(path, ns=(number + 2, number + 2))
        opened.append(sum(str(tmp_path) in os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()))
    found = [run.time.run for run in read_runs(tmp_path, [])]
    busy.close()
    assert {"busy", "run 4", "run 5"} == set(found)
    assert notes.is_dir()
    assert 1 == len({*opened})  # descriptors
    for number in range(6):  # runs that monitel.start() has begun stay, whatever their names
        open_run(tmp_path / "runs" / f"run-{number}").close()
    assert 6 == len([*(tmp_path / "runs").iterdir()])


COUNTER, STAT = Value("samples", (), "", 8, 2, "process"), Value("loss.count", (), "", 4, 2, "pipeline")
GAUGE = Value("loss.mean", (), "", 0.5, 2)
NOW = RunValues(config={"rate": 0.5}, values=(GAUGE, STAT, COUNTER))


def stored(values: RunValues) -> RunValues:
    return decode(encode(History(RunTime(), Attempt("", {}, 1), values))).values


def current(latest: RunValues | None = NOW) -> CurrentValues:
    return CurrentValues({"training.world_size": 2, "odd": ("a",)}, lambda: latest)


def numbers(values: RunValues) -> dict[str, float]:
    return {each.name: each.value for each in values.values}


def test_attempts_are_added_up_and_the_newest_value_counts() -> None:
    """Totals are those of all attempts, and settings those of the last one that has them."""
    later = replace(NOW, values=(GAUGE._replace(value=0.25, time_ns=9), STAT, COUNTER), config={"rate": 0.1, "more": 1})
    first = stored(current().after(RunValues(), last=True))
    second = stored(current(later).after(first.ended, last=True))
    assert {"samples": 16, "loss.count": 8, "loss.mean": 0.25} == numbers(second)
    assert {"rate": 0.1, "more": 1} == second.config
    assert {"training.world_size": 2, "odd": "('a',)"} == second.attributes


def test_second_pipeline_of_a_process_counts_nothing_twice() -> None:
    """Counters are those of the process; the totals of Stats begin again with the pipeline."""
    first = stored(current().after(stored(NOW).ended, last=True))
    found = current(replace(NOW, values=(STAT, COUNTER._replace(value=20)))).after(first, last=True)
    assert {"samples": 28, "loss.count": 12, "loss.mean": 0.5} == numbers(found)


def test_values_that_cannot_be_read_do_not_stop_the_ledger() -> None:
    """An error of the application's objects is not raised."""
    broken = CurrentValues({}, lambda: RunValues(1 / 0))  # type: ignore[arg-type]
    assert [NOW, NOW] == [each.after(NOW, last=True) for each in (broken, current(None))]


def test_size_is_limited_and_what_is_left_out_is_counted() -> None:
    """Long texts are cut; beyond the limits the last values are left out."""
    values = tuple(Value(f"layer.{number}", (), "", 0.5, 1) for number in range(3 * MOST))
    config: dict[str, Scalar] = {f"option.{number}": "\N{SNOWMAN}" * 5000 for number in range(2 * MOST)}
    found = stored(RunValues(config=config, values=values).limited)
    assert len(found.stored) <= LIMIT_BYTES
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
    found = stored(RunValues(texts, texts).limited)
    assert found.config == found.attributes
    assert (longest, texts["number"]) == (found.config["longest"], found.config["number"])
    assert len(texts) == len(set(found.config.values()))
    assert str(found.config["first"]).startswith("x" * 900)
    assert "... (1,001 characters, SHA-256 " in str(found.config["first"])
    assert found == stored(found.limited)
