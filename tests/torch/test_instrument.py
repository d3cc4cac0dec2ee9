"""monitel.torch.instrument(): installing, removing and configuring the sources."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402  after the check for torch

import monitel.torch  # noqa: E402
from monitel import _window  # noqa: E402
from monitel.torch import _compat, guarded_stat, instrumentation, poller  # noqa: E402
from monitel.torch.options import InstrumentOptions  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    if instrumentation._running is not None:
        instrumentation._running.uninstrument()
    instrumentation._warned.clear()


def sgd() -> Any:
    """Make an optimizer of one parameter that has a gradient."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter], lr=0.1)


def value_hook() -> Any:
    """Return the hook that converts samples for Stat.add."""
    hook = _window.set_value_hook(lambda _stat, _value: 0.0)
    _window.set_value_hook(hook)
    return hook


def state_of_torch() -> tuple[Any, ...]:
    """Return everything that sources replace in torch, Python and monitel."""
    hooks = register_optimizer_step_post_hook(lambda *_: None)
    hooked = len(hooks.hooks_dict_ref())
    hooks.remove()
    listening = len(_compat.collective_logger().handlers)
    threads = sum(thread.name == "monitel-torch" for thread in threading.enumerate())
    return (
        *(hooked, listening, threads, _compat.loader_iterator().__next__, torch.autograd.Variable._execution_engine),
        *(sys.excepthook, threading.excepthook, value_hook(), torch.amp.GradScaler.step),
        *(torch.save, torch.load, torch.serialization.save, torch.utils.data.DataLoader.__iter__),
        *(_compat.group_timers()._WaitCounter, torch.distributed.init_device_mesh),
        *(torch.distributed.Work.wait, torch.distributed._broadcast_coalesced),
    )


def test_import_monitel_does_not_import_torch() -> None:
    """``import monitel.torch`` does."""
    script = "import sys, monitel; print('torch' in sys.modules); import monitel.torch; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
    assert b"False\nTrue\n" == found.stdout


def test_uninstrument_restores_torch() -> None:
    """A second call has no effect."""
    before = state_of_torch()
    running = monitel.torch.instrument()
    assert all(was != now for was, now in zip(before, state_of_torch(), strict=True))
    running.uninstrument()
    running.uninstrument()
    assert before == state_of_torch()
    assert () == running.sources


def test_second_call_with_the_same_options_changes_nothing() -> None:
    """Steps are counted once."""
    running = monitel.torch.instrument()
    assert running is monitel.torch.instrument()
    sgd().step()
    assert 1 == monitel.get_step()


def test_second_call_with_other_options_ends_the_first() -> None:
    """Steps are counted once, and uninstrument() of the first result has no effect."""
    first = monitel.torch.instrument()
    second = monitel.torch.instrument(loading=False)
    assert ((), ("stages", "steps")) == (first.sources, second.sources[:2])
    first.uninstrument()
    sgd().step()
    assert 1 == monitel.get_step()


def test_with_block_ends_the_instrumentation() -> None:
    """Torch is restored at the end of the block."""
    before = state_of_torch()
    with monitel.torch.instrument() as running:
        assert "loading" in running.sources
        assert "steps" in repr(running)
    assert before == state_of_torch()


@pytest.mark.parametrize(
    "name",
    [
        *("stages", "steps", "loading", "waits", "monitor", "compilation", "failures", "checkpoints", "process_groups"),
        *("tensors", "compiled_adds"),
    ],
)
def test_each_source_can_be_switched_off(name: str) -> None:
    """The other sources run."""
    switches: dict[str, Any] = {name: False}
    on = set(monitel.torch.instrument().sources)
    assert on - {name} == set(monitel.torch.instrument(**switches).sources)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples_per_step": 0}, "samples_per_step must be a positive and finite number, or callable, got 0"),
        ({"tokens_per_step": float("nan")}, "tokens_per_step must be a positive and finite number, or .*, got nan"),
        ({"flops_per_step": 1e9}, "flops_per_step and peak_flops must be given together"),
        ({"samples_per_step": 8, "steps": False}, "samples_per_step, .* require steps=True"),
        ({"stuck_after": 0}, "stuck_after must be None or a positive number of seconds, got 0"),
        ({"stuck_after": -1.0}, "stuck_after must be None or a positive number of seconds, got -1.0"),
        ({"stuck_after": float("nan")}, "stuck_after must be None or a positive number of seconds, got nan"),
        ({"rank_group": "encoder", "stages": False}, "rank_group requires stages=True"),
        ({"rank_group": ""}, "rank_group must be None or a name, got an empty str"),
        ({"window_size": 0.0}, "window_size must be at least 1 ms"),
    ],
)
def test_invalid_values_raise_and_change_nothing(options: dict[str, Any], message: str) -> None:
    """The error names the argument, and the running instrumentation continues."""
    running = monitel.torch.instrument()
    before = state_of_torch()
    with pytest.raises(ValueError, match=message):
        monitel.torch.instrument(**options)
    assert before == state_of_torch()
    assert running is monitel.torch.instrument()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stepz": True}, r"instrument\(\) got an unexpected keyword argument 'stepz'"),
        ({"steps": "no"}, "steps must be True or False, got 'no'"),
        ({"stages": None}, "stages must be True or False, got None"),
        ({"stuck_after": "5"}, "stuck_after must be None or a positive number of seconds, got '5'"),
        ({"peak_flops": True}, "peak_flops must be a positive and finite number, got True"),
        ({"samples_per_step": "8"}, "samples_per_step must be a positive and finite number, or callable, got '8'"),
        ({"rank_group": 1}, "rank_group must be None or a str, got 1"),
        ({"model": torch.nn.Linear(1, 1)}, r"instrument\(\) got an unexpected keyword argument 'model'"),
        ({"window_size": 60}, "window_size must be a timedelta, or seconds as a float"),
    ],
)
def test_wrong_types_and_unknown_arguments_raise(options: dict[str, Any], message: str) -> None:
    """The error names the argument."""
    with pytest.raises(TypeError, match=message):
        monitel.torch.instrument(**options)
    assert instrumentation._running is None


def test_signature_is_that_of_the_options() -> None:
    """Names, types and defaults are defined once, in InstrumentOptions."""
    parameters = inspect.signature(monitel.torch.instrument).parameters
    assert parameters == inspect.signature(InstrumentOptions).parameters
    assert {inspect.Parameter.KEYWORD_ONLY} == {each.kind for each in parameters.values()}
    assert set(parameters) <= set(re.findall(r"^ {8}(\w+): ", InstrumentOptions.__doc__ or "", re.MULTILINE))


def test_missing_torch_feature_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The source is not installed, the others run, and uninstrument() works."""
    before = state_of_torch()
    name, iterator = "torch.utils.data.dataloader._BaseDataLoaderIter", _compat.loader_iterator()
    monkeypatch.delattr(name)
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        for _ in range(2):
            with monitel.torch.instrument() as running:
                assert ["stages", "loading"] == list(running.missing)
                assert all(f"{name} does not exist" in text for text in running.missing.values())
                assert {"stages", "loading"}.isdisjoint(running.sources)
                assert "steps" in running.sources
    assert 2 == len(caplog.records)
    assert "instrument(loading=...) has no effect here" in caplog.text
    monkeypatch.setattr(name, iterator, raising=False)
    assert before == state_of_torch()  # the stages have left no hook


def test_polling_continues_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """The failed function and the others are called again. The failure is logged once."""
    calls: list[str] = []
    thrice = threading.Event()

    def fail() -> None:
        calls.append("fail")
        raise RuntimeError("raised by a handler")

    def work() -> None:
        calls.append("work")
        if calls.count("work") == 3:
            thrice.set()

    with caplog.at_level(logging.WARNING, "monitel.torch"):
        running = poller.Poller([fail, work], seconds=0.01)
        assert thrice.wait(30)
        running.close()
    assert calls.count("fail") == calls.count("work") >= 4
    assert 1 == len(caplog.records)


@pytest.mark.usefixtures("unraisable")
def test_handler_that_raises_does_not_affect_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No call of torch raises its exception, which is logged once. Each window is logged, and each source removed."""
    monkeypatch.setattr(guarded_stat, "_warned", False)
    before, received = state_of_torch(), []

    def fail(event: monitel.Event) -> None:
        if event.window:
            received.append(event.window.name)
        raise OSError("no route")

    with monitel.testing.ManualClock() as clock, monitel.register_event_handler(fail):
        running = monitel.torch.instrument()
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            weight.sum().backward()
            clock.advance(61)
            optimizer.step()
        assert "training.step.duration" in received
        received.clear()
        running.uninstrument()
    assert 1 == len(caplog.records)
    assert before == state_of_torch()
    assert ["training.stage.duration"] * 5 + ["training.step.duration"] == sorted(received)
