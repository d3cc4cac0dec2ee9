"""Hyperparameters in the forms in which frameworks pass them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pytest

from monitel.integrations.hyperparameters import as_dict


class Unresolved(Mapping[str, object]):
    """A mapping that raises when one of its values is read, as OmegaConf's do."""

    def __iter__(self) -> Iterator[str]:
        return iter(["lr", "data", "secret_key"])

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: str) -> object:
        if key == "data":
            raise LookupError("data is missing")
        return 0.1 if key == "lr" else "hidden"


class UnresolvedList(Sequence[object]):
    """A sequence that raises when its second value is read."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: object) -> Any:
        if index == 0:
            return Unresolved()
        raise LookupError("the value is missing")


READ = {"lr": 0.1, "data": "<LookupError>", "secret_key": "***"}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {}),
        ({"lr": 0.1, "layers": (4, 1), "name": "net"}, {"lr": 0.1, "layers": [4, 1], "name": "net"}),
        (Namespace(lr=0.1, model=Namespace(width=4)), {"lr": 0.1, "model": "Namespace(width=4)"}),
        (Unresolved(), READ),
        ({"stages": UnresolvedList()}, {"stages": [READ, "<LookupError>"]}),
        ({"data": {"token": "x", "tokens": 3}}, {"data": {"token": "***", "tokens": 3}}),
    ],
)
def test_each_readable_value_is_kept(params: object, expected: object) -> None:
    """Mappings become dicts and sequences lists; the name of the exception takes the place of an unreadable value."""
    assert expected == as_dict(params)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Namespace(api_key="two words", lr=0.1), "Namespace(api_key='***', lr=0.1)"),
        (PurePosixPath("s3://me:hidden@bucket/rows"), "s3:/***@bucket/rows"),
        ({"token=hidden"}, "{'token=***'}"),
        (b"password=hidden", "password=***"),
        ([Namespace(token="hidden")], ["Namespace(token='***')"]),
    ],
)
def test_secrets_in_the_text_of_an_object_are_masked(value: object, expected: object) -> None:
    """An object is recorded as its text."""
    assert {"value": expected} == as_dict({"value": value})


def test_other_objects_are_refused() -> None:
    """An object without attributes has no hyperparameters."""
    with pytest.raises(TypeError):
        as_dict(3)
