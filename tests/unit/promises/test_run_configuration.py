"""The configuration of a run: a tree that is equal where the configuration is equal, without secrets."""

import copy
import math
import pickle
from argparse import Namespace
from collections import UserString, namedtuple
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.checks import SetEnv

import monitel
from monitel.process.masking import mask_arguments


@dataclass
class Model:
    """A configuration with a set, and a part that its author does not show."""

    width: int = 64
    targets: set[str] = field(default_factory=lambda: {"v", "k", "q"})
    client: object = field(default="hidden", repr=False)


Color = Enum("Color", {"RED": "red"})
Level = IntEnum("Level", {"LOW": 1})


class Settings:
    def to_dict(self) -> dict[str, Any]:
        return {"layers": 2, "tool": Tool()}


class Tool:
    def run(self) -> None:
        """Do nothing."""


class Unreadable(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise LookupError(key)


class Attributes:
    """Has the names and values of a mapping without its class, as the configurations of ``ml_collections``."""

    def keys(self) -> list[str]:
        return ["lr"]

    def __getitem__(self, key: str) -> float:
        return len(key) / 10


def test_config_keeps_the_whole_configuration(events: list[Any]) -> None:
    """As built-in values, in a copy; data has the values that an Event can hold, by dotted name."""
    model: dict[str, Any] = {"layers": [2, {"width": 8}], "dropout": None, "name": "s"}
    given: dict[str, Any] = {"lr": 1e-4, "model": model, "amp": True}
    expected = copy.deepcopy(given)
    monitel.config(given)
    given["model"]["layers"].append(3)
    (event,) = events
    assert ("run.config", expected) == (event.name, event.config)
    assert isinstance(event, monitel.RunConfig)
    assert {"lr": 1e-4, "model.name": "s", "amp": True} == event.data
    assert (event, expected) == ((again := pickle.loads(pickle.dumps(event))), again.config)


def test_config_takes_what_has_names(events: list[Any]) -> None:
    """A Namespace, a dataclass, an object with names, or keywords, which replace values; a mapping may be empty."""
    given: list[Any] = [Namespace(lr=0.1, sizes=(2, 3)), Model(), Attributes(), {}]
    for values in given:
        monitel.config(values)
    monitel.config({"lr": 0.1, "seed": 1}, seed=2, name="s")
    monitel.config(lr=0.1)
    parsed: list[Any] = [{"lr": 0.1, "sizes": [2, 3]}, {"width": 64, "targets": ["k", "q", "v"]}, {"lr": 0.2}, {}]
    assert [*parsed, {"lr": 0.1, "seed": 2, "name": "s"}, {"lr": 0.1}] == [event.config for event in events]
    for wrong in (object(), [1], {1}, "x", 1, None, Model):
        with pytest.raises(TypeError, match=r"such as vars\(arguments\), .* got "):
            monitel.config(wrong)
    assert 6 == len(events)


def typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: typed(each) for key, each in value.items()}
    return [typed(each) for each in value] if isinstance(value, list) else (type(value), value)


def test_configuration_is_a_tree_of_values_that_stay_the_same() -> None:
    """No address, no order of a set, and the exact built-in types; what cannot be read is the name of its exception."""
    anything = partial(Tool)
    point = namedtuple("point", "x y")  # noqa: PYI024  users have them
    tool, targets = f"{__name__}.Tool", ["k", "q", "v"]
    table: list[tuple[Any, Any]] = [
        *((2**64, "18446744073709551616"), ((1, 2), [1, 2]), ({1: None, (1, 2): 3}, {"1": None, "[1, 2]": 3})),
        *(({10, 9, 1}, [1, 9, 10]), (frozenset("ba"), ["a", "b"]), ({"b", 2}, ["b", 2]), ({1: 2}.keys(), [1])),
        *(({math.nan, 2, 1}, [1, 2, math.nan]), ({frozenset("yx"): 1}, {"['x', 'y']": 1})),
        *((Model(), {"width": 64, "targets": targets}), (SimpleNamespace(a=[Namespace(b=1)]), {"a": [{"b": 1}]})),
        *((Color.RED, "Color.RED"), (Level.LOW, 1), (Path("a/b"), "a/b"), (point(1, {3, 2}), {"x": 1, "y": [2, 3]})),
        *((len, "len"), (math.sqrt, "math.sqrt"), (dict, "dict"), (Tool, tool), (Tool().run, f"{tool}.run")),
        (partial(anything, 1, lr=len), {"_target_": tool, "_args_": [1], "lr": "len"}),
        *((Tool(), f"<{tool} object>"), (iter([]), "<list_iterator object>")),
        (Unreadable(a=1), {"a": "<LookupError>"}),
        *((Settings(), {"layers": 2, "tool": f"<{tool} object>"}), (Settings, f"{__name__}.Settings")),
        *((np.float32(0.5), 0.5), (np.bool_(True), True), (np.dtype("int8"), "int8"), (np.int8, "numpy.int8")),
        *((np.eye(2), [[1.0, 0.0], [0.0, 1.0]]), (np.array(3), 3), (np.array(["a"]), ["a"])),
        (np.zeros((30, 4), "int8"), {"shape": [30, 4], "dtype": "int8"}),
        *((list[int], "list[int]"), (UserString("ab"), "ab"), (range(10**9), "range(0, 1000000000)"), (1j, "1j")),
        *((b"\xff", "b'\\xff'"), ("\udc80", "\\udc80")),
    ]
    for given, expected in table:
        found = monitel.RunConfig({"value": given}).config
        assert repr(typed({"value": expected})) == repr(typed(found))
    node = SimpleNamespace(children=[SimpleNamespace() for _ in range(9)])
    for child in node.children:  # 9**10 paths
        child.parent = node
    assert {"children": [{"parent": "<cycle>"}] * 9} == monitel.RunConfig(node).config
    nested: Any = 1
    for _ in range(30):
        nested = {"in": nested}
    text = repr(monitel.RunConfig(nested).config)
    assert (20, True) == (text.count("{'in'"), "<left out>" in text)


def test_values_that_refer_to_each_other_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many paths lead through them, ``config()`` and ``log()`` end, and what comes before is recorded."""
    monkeypatch.setattr("monitel.run_config._MOST", 10_000)
    shared: Any = {"first": 1}
    for _ in range(40):
        shared = {"first": 1, "a": shared, "b": shared}
    config = monitel.RunConfig(shared).config
    assert (1, True) == (config["first"], "<left out>" in str(config))
    shared["c"] = shared["d"] = shared
    with monitel.testing.capture_events() as events:
        monitel.log(shared)
    assert 1 == events[0].data["first"]


#: Names of options and keys, and values. A command and a configuration mask the same.
SECRET = [
    *((name, "x") for name in ("hf_token", "hub_token", "token", "key", "bearer", "pat", "api_key", "apiKey")),
    *((name, "x") for name in ("hftoken", "slack-webhook", "db-pass", "db_pw", "wandb.key", "aws_secret_access_key")),
    *(("bot_token", "x"), ("request_signature", "x"), ("Token", "-X"), ("db.password", "a b"), ("password", "<x>")),
]
SHOWN = [
    *((name, "x") for name in ("bosToken", "signature_columns", "label-key", "decoder_start_token", "pattern", "keys")),
    *(("author", "x"), ("eos_token", "</s>"), ("eos_token", "<|im_end|>"), ("pad_token", "!"), ("token_type", "bert")),
    *(("tokenizer", "bert"), ("max_tokens", "5"), ("sort_by", "key"), ("boi_token", "<image>")),
]


@pytest.mark.parametrize(("name", "value", "is_secret"), [(*each, each in SECRET) for each in [*SECRET, *SHOWN]])
def test_one_rule_masks_commands_and_configurations(name: str, value: str, is_secret: bool) -> None:
    """As the value of an option, after a ``=``, inside of a text, and in a configuration, nested too."""
    shown = "***" if is_secret else value
    text = "{{'a': 1, '{}': '{}'}}"
    command = [f"--{name}", value, "--lr", f"+{name}={value}", text.format(name, value), f"--{name}", "--lr"]
    expected = [f"--{name}", shown, "--lr", f"+{name}={shown}", text.format(name, shown), f"--{name}", "--lr"]
    assert expected == mask_arguments(command, {}) == monitel.RunConfig({"argv": command}).config["argv"]
    given = {name: value, "model": [{name: [value, 1, None, True, ""]}]}
    assert {name: shown, "model": [{name: [shown, 1, None, True, ""]}]} == monitel.RunConfig(given).config


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/***"),
        ("https://discord.com/api/webhooks/1/xyz", "https://discord.com/api/webhooks/***"),
        ("https://me:pw@host/path", "https://***@host/path"),
        ("https://host/?a=1&token=xyz&b=2", "https://host/?a=1&token=***&b=2"),
        ("url=https://host/?key=xyz", "url=https://host/?key=***"),
        ("xoxb-1234567890-abc", "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END", "-----BEGIN RSA PRIVATE KEY-----***"),
        ("xcanaryy", "x***y"),
        ("https://github.com/me/hooks", "https://github.com/me/hooks"),
        ('{"password": "two words", "x": 1}', '{"password": "***", "x": 1}'),
        ('{"password": "a,\\"b}c", "x": 1}', '{"password": "***", "x": 1}'),
        (r"{\"password\": \"two words\", \"x\": 1}", r"{\"password\": \"***\", \"x\": 1}"),
        ("Settings(token='two words', x=1)", "Settings(token='***', x=1)"),
        ("Settings(token='not closed", "Settings(token='***"),
    ],
)
def test_secrets_in_texts_are_masked(text: str, masked: str, setenv: SetEnv) -> None:
    """Wherever a text is: addresses of webhooks, users, tokens of well-known forms, values of variables."""
    setenv(WANDB_API_KEY="canary")
    assert ["train.py", masked] == mask_arguments(["train.py", text], {"WANDB_API_KEY": "canary"})
    assert {"a": [masked]} == monitel.RunConfig({"a": [text]}).config


def test_time_for_a_long_text_is_proportional_to_its_length() -> None:
    """A command may hold a program; each of these took minutes with a quadratic pattern."""
    for part in ("token", "a_", "a=", "\\", "hook", "https://hook", "key ", "'token': '", "-"):
        mask_arguments([part * 10_000, f"x {part * 10_000}"], {})
