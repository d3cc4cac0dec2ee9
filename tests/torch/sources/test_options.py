"""MONITEL_* variables of monitel.torch.instrument(): they set its options, and wrong values are reported."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.paths import ROOT

import monitel.torch
from monitel.torch.instrumentation import SOURCES

DEFAULTS = {name: each.default for name, each in inspect.signature(monitel.torch.instrument).parameters.items()}


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    monitel.torch.instrument().uninstrument()


def used(**given: Any) -> dict[str, Any]:
    """Return the options of an instrumentation that differ from the defaults."""
    found = dict(monitel.torch.instrument(**given)._options)
    found.pop("sources")
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


@pytest.mark.parametrize(
    ("sources", "installed"),
    [
        ("steps, tensors", ["steps", "tensors"]),
        (["waits"], ["waits"]),
        (
            "-stages,-loading,-waits,-compilation,+failures,-failures,-checkpoints",
            ["steps", "stuck", "monitor", "process_groups", "tensors"],
        ),
        ([], []),
    ],
)
def test_names_choose_sources_and_signs_change_the_default(
    sources: Any, installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the argument, and as the variable, which an argument overrides."""
    if isinstance(sources, str):
        monkeypatch.setenv("MONITEL_SOURCES", sources)
        assert installed == [*monitel.torch.instrument().sources]
        monkeypatch.setenv("MONITEL_SOURCES", "checkpoints")
    assert installed == [*monitel.torch.instrument(sources=sources).sources]


def test_page_and_help_have_every_source() -> None:
    """Each source has a row of the configuration page, and a line in the docstring."""
    section = (ROOT / "docs/reference/configuration.md").read_text("utf-8").split("### Sources\n")[1].split("\n#")[0]
    assert {*SOURCES} == {*re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)}
    assert [*SOURCES] == re.findall(r"\* ``(\w+)``:", monitel.torch.instrument.__doc__ or "")


def test_variables_have_the_values_of_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole number stays an int, so that a counter of it is exact."""
    given: dict[str, tuple[str, Any]] = {
        "stuck_after": ("None", None),
        "rank_group": ("encoder", "encoder"),
        "window_size": ("0.5", 0.5),
        "samples_per_step": ("32", 32),
        "tokens_per_step": ("6.5e4", 65_000.0),
        "flops_per_step": ("1e15", 1e15),
        "peak_flops": ("9.89e14", 9.89e14),
    }
    for name, (text, _) in given.items():
        monkeypatch.setenv(f"MONITEL_{name.upper()}", text)
    assert {name: repr(value) for name, (_, value) in given.items()} == {
        name: repr(value) for name, value in used().items()
    }


def test_wrong_value_is_one_warning_and_the_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"sources": "steps,batches", "stuck_after": "-1", "window_size": "1 minute", "samples_per_step": "inf"}
    for name, value in wrong.items():
        monkeypatch.setenv(f"MONITEL_{name.upper()}", value)
    assert {} == used() == used()
    for (name, value), message in zip(sorted(wrong.items()), sorted(caplog.messages), strict=True):
        assert message.startswith(f"MONITEL_{name.upper()}: expected ")
        assert f", got {value!r}; using " in message


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"samples_per_step": 0}, ValueError, "samples_per_step must be a positive and finite number, or callable, "),
        ({"flops_per_step": 1e9}, ValueError, "flops_per_step and peak_flops must be given together"),
        ({"stuck_after": float("nan")}, ValueError, "stuck_after must be None or a positive number of seconds, got"),
        ({"rank_group": ""}, ValueError, "rank_group must be None or a name, got an empty str"),
        ({"stepz": True}, TypeError, r"instrument\(\) got an unexpected keyword argument 'stepz'"),
        ({"sources": "steps,batches"}, ValueError, "sources must be names of stages_on_device, .*, got 'batches'"),
        ({"sources": True}, TypeError, "sources must be names of sources, got True"),
        ({"sources": iter(["steps"])}, TypeError, "sources must be names of sources, got <list_iterator"),
        ({"sources": "-failures,steps"}, ValueError, "sources must all have a sign, to change the default, or none"),
        ({"sources": "--steps"}, ValueError, "got '--steps'"),
        ({"sources": ["stages_on_device"]}, ValueError, "stages_on_device requires stages"),
        ({"window_size": 60}, TypeError, "window_size must be a timedelta, or seconds as a float"),
    ],
)
def test_wrong_argument_raises_and_changes_nothing(options: Any, error: type[Exception], message: str) -> None:
    """The error names the argument, and the running instrumentation continues."""
    running = monitel.torch.instrument()
    with pytest.raises(error, match=message):
        monitel.torch.instrument(**options)
    assert running is monitel.torch.instrument()
