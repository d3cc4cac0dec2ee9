"""The stored form of the values of a run: its size is limited, and long texts that differ stay different."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from monitel.console.values.run_values import Progress, RunValues, Value
from monitel.console.values.stored import (
    LIMIT_BYTES,
    LONGEST_TEXT,
    MOST,
    decode,
    encode,
)

if TYPE_CHECKING:
    from monitel.console.values.run_values import Scalar

VALUES = RunValues(
    "run \udc80/\n'",
    "process",
    99,
    "completed",
    {"training.world_size": 2, "host.name": "n04"},
    {"rate": 1e-4, "name": "größer", "dropout": None, "on": True},
    Progress(20, 19, 18, 3.5),
    Progress(10, 9, 8, 1.5),
    (
        Value("loss.mean", (("last", True), ("split", "train")), "", 0.25, 98),
        Value("samples", (), "{sample}", 160, 99, True, 80),
        Value("gradient.norm.max", (), "", math.inf, 97),
    ),
    3,
)


def test_size_is_limited_and_what_is_left_out_is_counted() -> None:
    """Long texts are cut; beyond the limits the last values are left out."""
    values = tuple(Value(f"layer.{number}", (), "", 0.5, 1) for number in range(3 * MOST))
    config: dict[str, Scalar] = {f"option.{number}": "\N{SNOWMAN}" * 5000 for number in range(2 * MOST)}
    config["x" * 1000] = 1
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
