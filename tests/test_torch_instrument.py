"""monitel.torch.instrument(): what is switched on is plugged in, once, and unplugged again."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402  after the check that torch is there

import monitel.torch  # noqa: E402
from monitel.torch import _compat, instrumentation, own_stat, ticking  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    if instrumentation._running is not None:
        instrumentation._running.uninstrument()
    instrumentation._said.clear()
    monitel._window.set_step(None)


def sgd() -> Any:
    """Make an optimizer of one parameter that has a gradient."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter], lr=0.1)


def value_hook() -> Any:
    """Give what Stat.add asks about tensors."""
    hook = monitel._window.set_value_hook(lambda _stat, _value: 0.0)
    monitel._window.set_value_hook(hook)
    return hook


def state_of_torch() -> tuple[Any, ...]:
    """Give what a source replaces."""
    hooks = register_optimizer_step_post_hook(lambda *_: None)
    hooked = len(hooks.hooks_dict_ref())
    hooks.remove()
    listening = len(_compat.collective_logger().handlers)
    threads = sum(thread.name == "monitel-torch" for thread in threading.enumerate())
    return (
        *(hooked, listening, threads, _compat.loader_iterator().__next__, torch.autograd.backward),
        *(sys.excepthook, threading.excepthook, value_hook()),
    )


def test_import_monitel_does_not_import_torch() -> None:
    """And ``monitel.torch`` is had by its own import."""
    script = "import sys, monitel; print('torch' in sys.modules); import monitel.torch; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
    assert b"False\nTrue\n" == found.stdout


def test_leaves_torch_as_it_was() -> None:
    """After uninstrument(), which may be called twice, nothing of ours is left."""
    before = state_of_torch()
    running = monitel.torch.instrument(phases=True)
    assert all(was != now for was, now in zip(before, state_of_torch(), strict=True))
    running.uninstrument()
    running.uninstrument()
    assert before == state_of_torch()
    assert () == running.sources


def test_a_second_call_with_the_same_choices_changes_nothing() -> None:
    """One hook, one count."""
    running = monitel.torch.instrument()
    assert running is monitel.torch.instrument()
    sgd().step()
    assert 1 == monitel.get_step()


def test_a_second_call_with_other_choices_ends_the_first() -> None:
    """Nothing counts twice, and the handle of the first does nothing any more."""
    first = monitel.torch.instrument(phases=True)
    second = monitel.torch.instrument(loading=False)
    assert ((), ("steps",)) == (first.sources, second.sources[:1])
    first.uninstrument()
    sgd().step()
    assert 1 == monitel.get_step()


def test_a_block() -> None:
    """``with`` ends it."""
    before = state_of_torch()
    with monitel.torch.instrument() as running:
        assert "loading" in running.sources
        assert "steps" in repr(running)
    assert before == state_of_torch()


@pytest.mark.parametrize(
    "name", ["steps", "loading", "waits", "monitor", "compilation", "failures", "tensors", "compiled_adds"]
)
def test_each_source_can_be_switched_off(name: str) -> None:
    """And the others run."""
    switches: dict[str, Any] = {name: False}
    on = set(monitel.torch.instrument().sources)
    assert on - {name} == set(monitel.torch.instrument(**switches).sources)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"samples_per_step": 0}, "samples_per_step must be a positive number, got 0"),
        ({"tokens_per_step": float("nan")}, "tokens_per_step must be a positive number, got nan"),
        ({"flops_per_step": 1e9}, "flops_per_step and peak_flops go together"),
        ({"samples_per_step": 8, "steps": False}, "leave steps=True"),
        ({"model": torch.nn.Linear(1, 1)}, "model is for phases=True"),
        ({"window_size": 0.0}, "window_size must be at least 1 ms"),
    ],
)
def test_misuse_raises_and_changes_nothing(choices: dict[str, Any], message: str) -> None:
    """What ran before goes on."""
    running = monitel.torch.instrument()
    before = state_of_torch()
    with pytest.raises(ValueError, match=message):
        monitel.torch.instrument(**choices)
    assert before == state_of_torch()
    assert running is monitel.torch.instrument()


def test_what_torch_does_not_have_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The source stays off, the others run, and uninstrument() works."""
    monkeypatch.delattr("torch.utils.data.dataloader._BaseDataLoaderIter")
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        for _ in range(2):
            with monitel.torch.instrument() as running:
                assert ["loading"] == list(running.missing)
                assert "torch.utils.data.dataloader._BaseDataLoaderIter is not there" in running.missing["loading"]
                assert "loading" not in running.sources
                assert "steps" in running.sources
    assert 1 == len(caplog.records)
    assert "instrument(loading=...) does nothing with this torch" in caplog.text


def test_the_thread_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """With that function, and with the others; it is said once."""
    calls: list[str] = []
    thrice = threading.Event()

    def fail() -> None:
        calls.append("fail")
        raise RuntimeError("a handler's")

    def work() -> None:
        calls.append("work")
        if calls.count("work") == 3:
            thrice.set()

    with caplog.at_level(logging.WARNING, "monitel.torch"):
        running = ticking.Ticking([fail, work], seconds=0.01)
        assert thrice.wait(30)
        running.close()
    assert calls.count("fail") == calls.count("work") >= 4
    assert 1 == len(caplog.records)


def test_a_handler_that_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It comes out of no call of torch's, and is said once; each window is logged, and each source taken back."""
    monkeypatch.setattr(own_stat, "_said", False)
    monkeypatch.setattr(sys, "unraisablehook", lambda _report: None)  # where the others go
    before, heard = state_of_torch(), []

    def fail(event: monitel.Event) -> None:
        if event.window:
            heard.append(event.window.name)
        raise OSError("no route")

    with monitel.testing.ManualClock() as clock, monitel.register_event_handler(fail):
        running = monitel.torch.instrument(phases=True)
        optimizer = sgd()
        for _ in range(3):
            clock.advance(61)
            optimizer.step()
        assert "training.steps" in heard
        heard.clear()
        running.uninstrument()
    assert 1 == len(caplog.records)
    assert before == state_of_torch()
    assert ["training.optimizer.duration", "training.step.duration", "training.steps"] == sorted(heard)
