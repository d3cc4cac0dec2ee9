"""One call, ``monitel.torch.instrument()``, measures a job; it changes no result, and ``uninstrument()`` undoes it."""

import gc
import inspect
import io
import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.support.paths import ROOT
from tests.support.scripts import Run
from tests.torch.known_work import STEP, Work, sgd, total, train, windows_of
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import monitel
import monitel.torch
from monitel.profiler import profile, record_function
from monitel.testing import capture_events
from monitel.torch.instrumentation import SOURCES

#: The sources of an instrumentation without options.
ALL = [
    *("stages", "steps", "loading", "waits", "stuck", "monitor", "compilation", "failures", "checkpoints"),
    *("process_groups", "tensors"),
]


def test_steps_stages_and_work_are_measured(work: Work) -> None:
    """With exact durations, counts, and step numbers. One process has no ``sync``."""
    options: dict[str, Any] = {"window_size": float("inf"), "rank_group": "encoder"}
    with capture_events() as events, monitel.torch.instrument(**options) as running:
        assert ALL == [*running.sources]
        assert {} == running.missing
        train(work, 4)
    assert (4, 4, 0) == (monitel.get_step(), total("steps"), total("steps.skipped"))
    (step,) = windows_of(events, "training.step.duration")
    assert (3, 141.0, 47.0, 47.0, "s") == (step.count, step.sum, step.min, step.max, step.unit)
    assert (2, 4) == (step.first_step, step.last_step)
    assert {(stage, "encoder", "s", 3, 3 * seconds) for stage, seconds in STEP.items()} == {
        (each.attributes["training.stage"], each.attributes["training.group"], each.unit, each.count, each.sum)
        for each in windows_of(events, "training.stage.duration")
    }


def test_waits_of_torch_are_counted() -> None:
    """Counters from before instrument(), too. After uninstrument() the readings are kept, with no wait in flight."""
    key = "pytorch.wait_counter.test_instrument"

    def wait() -> None:
        with torch.monitor._WaitCounter(key).guard():
            pass

    wait()
    wait()
    with monitel.torch.instrument() as running:
        wait()
        with torch.monitor._WaitCounter(key).guard():
            monitel.flush()
            assert (3, 1) == (monitel.wait_counters()[key].count, monitel.wait_counters()[key].active)
            running.uninstrument()
    wait()
    reading = monitel.wait_counters()[key]
    assert (3, 0) == (reading.count, reading.active)
    assert 0 <= reading.max <= reading.total < 60
    with monitel.torch.instrument():
        assert 5 == monitel.wait_counters()[key].count


@pytest.mark.usefixtures("fresh_compiler", "instrumented")
def test_compilations_are_events_with_the_reason_of_a_recompilation(events: list[monitel.Event]) -> None:
    """And ranges. Each has the step at which it happened. Recompilations are counted, with their seconds."""

    def double(x: Any) -> Any:
        return x * 2

    compiled, began = torch.compile(double, backend="eager", dynamic=False), time.monotonic()
    with profile() as prof:
        for step, size in ((100, 2), (150, 3), (200, 3)):
            monitel.set_step(step)
            with record_function("step"):
                compiled(torch.ones(size))
    elapsed = time.monotonic() - began
    monitel.flush()
    found = {event.name: event for event in events if event.name in {"torch.compile", "torch.recompile"}}
    started = [event for event in events if event.name == "torch.compile.started"]
    first, again = found["torch.compile"], found["torch.recompile"]
    assert [100, 150] == [event.step for event in started] == [first.step, again.step]
    assert [event.data["compile.id"] for event in started] == [first.data["compile.id"], again.data["compile.id"]]
    assert ["dynamo", "dynamo"] == [event.data["compile.trigger"] for event in started]
    parents = [each.cpu_parent and each.cpu_parent.name for each in prof.events() if each.name == "torch.compile"]
    assert ["step", "step"] == parents
    assert started[0].timestamp <= first.timestamp <= started[1].timestamp <= again.timestamp
    assert (monitel.Severity.INFO, monitel.Severity.WARN) == (first.severity, again.severity)
    assert ["double"] * 2 == [event.data["compile.function"] for event in (first, again)]
    assert "expected 2, actual 3" in str(again.data["compile.reason"])
    assert 0 < sum(float(event.data["compile.duration"]) for event in (first, again)) <= elapsed
    assert 1 == total("recompilations")
    assert pytest.approx(again.data["compile.duration"]) == total("recompilation.time")


@pytest.mark.usefixtures("group")
def test_failures_are_events(monkeypatch: pytest.MonkeyPatch, events: list[monitel.Event]) -> None:
    """Uncaught exceptions of the process and of threads, out of memory, and failed collectives; not an interrupt.

    Text is escaped, and secrets are masked. The hooks beneath are called.
    """
    monkeypatch.setenv("RANK", "1")
    monitel.set_step(41)
    reached: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _trace: reached.append(error))
    monkeypatch.setattr(threading, "excepthook", lambda arguments: reached.append(arguments.exc_value))

    def uncaught(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)

    with monitel.torch.instrument():
        uncaught(lambda: 1 // 0)
        uncaught(lambda: torch.empty(2**60, dtype=torch.uint8))
        thread = threading.Thread(target=lambda: sys.modules["no such module"])
        thread.start()
        thread.join()
        with pytest.raises(LookupError):
            torch.distributed.all_gather_object(
                [None], Mock(__reduce_ex__=Mock(side_effect=LookupError("https://me:secret@example.org")))
            )
        for error in (torch.OutOfMemoryError("20 GiB"), MemoryError("a list"), KeyboardInterrupt()):
            uncaught(Mock(side_effect=error))
        uncaught(Mock(side_effect=OSError("no \udcff of https://me:secret@example.org")))
    found = [event for event in events if event.window is None]
    assert [
        *("FATAL exception", "FATAL out_of_memory", "ERROR exception", "ERROR collective.failed"),
        *("FATAL out_of_memory", "FATAL out_of_memory", "FATAL exception"),
    ] == [f"{event.severity.name} {event.name}" for event in found]
    assert [(41, 1)] * 7 == [(event.step, event.data["training.rank"]) for event in found]
    data = dict(found[0].data)
    assert "in uncaught\n" in str(data.pop("exception.stacktrace"))
    assert {
        "exception.type": "ZeroDivisionError",
        "exception.message": "integer division or modulo by zero",
        "training.rank": 1,
        "training.step": 41,
    } == data
    names = ("collective.func_name", "collective.backend")
    assert ("all_gather_object", "gloo") == tuple(found[3].data[name] for name in names)
    messages = [event.data["exception.message"] for event in found[4:]]
    assert ["20 GiB", "a list", "no \\udcff of https://***@example.org"] == messages
    assert "secret" not in str([event.data for event in found])
    kinds = [ZeroDivisionError, RuntimeError, KeyError, torch.OutOfMemoryError, MemoryError, KeyboardInterrupt, OSError]
    assert kinds == [type(error) for error in reached]
    reached.clear()


def snapshot() -> dict[str, Any]:
    """Return all attributes of the modules, classes and module-level objects of torch, and Python's hooks, by name."""
    found: dict[str, Any] = {
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "sys.meta_path": tuple(map(id, sys.meta_path)),
        "gc.callbacks": tuple(map(id, gc.callbacks)),
        "threads": tuple(sorted(each.name for each in threading.enumerate())),
        "wait_tensor": torch.ops._c10d_functional.wait_tensor.default._op,
    }
    for name, logger in logging.root.manager.loggerDict.items():
        found[f"logger {name}"] = tuple(map(id, getattr(logger, "handlers", ())))
    warnings.simplefilter("ignore")  # until the end of the test: some objects of torch warn when they are read
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] == "torch" and type(module) is ModuleType:
            for key, value in [*vars(module).items()]:
                found[f"{name}.{key}"] = value
                if isinstance(value, (dict, list, set)):
                    found[f"{name}.{key}: length"] = len(value)
                elif (value if isinstance(value, type) else type(value)).__module__.startswith("torch"):
                    for attribute, each in [*getattr(value, "__dict__", {}).items()]:
                        found[f"{name}.{key}.{attribute}"] = each
                        if isinstance(each, (dict, list, set)):
                            found[f"{name}.{key}.{attribute}: length"] = len(each)
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of what is another object; the numbers that torch gives to its hooks rise."""

    def same(one: Any, other: Any) -> bool:
        return one is other or (isinstance(one, (int, float, str, tuple)) and one == other)

    return [name for name, value in before.items() if "next_id" not in name and not same(value, after.get(name))]


def test_uninstrument_restores_torch_and_python() -> None:
    """No attribute of any module, class or module-level object of torch is another one. It is idempotent."""
    with monitel.torch.instrument():
        sgd().step()
    before = snapshot()
    running = monitel.torch.instrument()
    during = changed(before, snapshot())
    running.uninstrument()
    running.uninstrument()
    assert [] == changed(before, snapshot())
    assert () == running.sources
    assert {
        *("sys.excepthook", "threading.excepthook", "threads", "wait_tensor", "torch.save", "torch.load"),
        *("torch.autograd.variable.Variable._execution_engine", "torch.utils.data.dataloader.DataLoader.__iter__"),
        *("torch.amp.grad_scaler.GradScaler.step", "torch._C._distributed_c10d.Work.wait"),
        *("torch.distributed.checkpoint.save", "torch.distributed.device_mesh.init_device_mesh"),
        *("torch.optim.optimizer._global_optimizer_post_hooks: length",),
    } <= {*during}


def trained() -> tuple[list[Any], Any]:
    """Train with everything that instrument() hooks; return gradients, parameters and losses, and a random number."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data = TensorDataset(torch.randn(24, 4))
    found: list[Any] = []
    for number, (batch,) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
        loss = checkpoint(model, batch, use_reentrant=False).square().mean() * (float("inf") if number == 2 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        found += [loss.tolist(), *(each.grad.tolist() for each in model.parameters())]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if number == 3:
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
            buffer.seek(0)
            model.load_state_dict(torch.load(buffer))
        found += [each.tolist() for each in model.parameters()]
    return [repr(each) for each in found], torch.rand(1).item()


@pytest.mark.usefixtures("clock")
def test_gradients_and_results_are_identical() -> None:
    """To the last bit, with dropout, shuffled batches, gradient scaling and recomputed activations."""
    expected = trained()
    with monitel.torch.instrument(samples_per_step=4, flops_per_step=1e9, peak_flops=1e12):
        assert expected == trained()
    assert expected == trained()
    assert (5, 1) == (total("steps"), total("steps.skipped"))


def test_second_call_does_not_measure_twice() -> None:
    """With the same options it returns the running instrumentation; with others it ends that one."""
    first = monitel.torch.instrument()
    assert first is monitel.torch.instrument()
    second = monitel.torch.instrument(sources="-loading")
    assert ((), [name for name in ALL if name != "loading"]) == (first.sources, [*second.sources])
    first.uninstrument()
    sgd().step()
    second.uninstrument()
    sgd().step()
    assert (1, 1) == (monitel.get_step(), monitel.counter("training.steps").total)


def test_run_keeps_the_instrumentation_of_the_program(run: Run) -> None:
    """With its options, and after its end; without one, the run has its own, and frees it at its end."""
    script = """
import gc, weakref, torch, monitel.torch
for options in ({"sources": ["steps"]}, None):
    mine = options and monitel.torch.instrument(**options)
    with monitel.start("run"):
        print(monitel.torch.instrumentation._running.sources == ("steps",))
    print(monitel.torch.instrumentation._running is mine)
    mine and mine.uninstrument()
with monitel.start("run") as ended:
    own = weakref.ref(monitel.torch.instrumentation._running)
gc.collect()
print(own())
"""
    assert "True\nTrue\nFalse\nTrue\nNone\n" == run("-c", script).stdout


@pytest.mark.parametrize(
    "begin", ["monitel.start('run')", "from monitel.runs import exporters; exporters.begin('torch')"]
)
def test_torch_that_monitel_torch_imports_first_is_instrumented(run: Run, begin: str) -> None:
    """By a run that waits for it, and by the import hook of ``monitel run``, which see its import before the rest."""
    hook = f"""
import monitel
from monitel.process.import_hook import AfterImport
AfterImport("torch", lambda: exec({begin!r}))
import monitel.torch
print(monitel.torch.instrumentation._running is not None)
"""
    assert "True\n" == run("-c", hook, fresh=True).stdout


DEFAULTS = {name: each.default for name, each in inspect.signature(monitel.torch.instrument).parameters.items()}


@pytest.fixture
def _end() -> Iterator[None]:
    yield
    monitel.torch.instrument().uninstrument()


def used(**given: Any) -> dict[str, Any]:
    """Return the options of an instrumentation that differ from the defaults."""
    found = dict(monitel.torch.instrument(**given)._options)
    found.pop("sources")
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


@pytest.mark.usefixtures("_end")
@pytest.mark.parametrize(
    ("sources", "installed"),
    [
        ("steps, tensors", ["steps", "tensors"]),
        (["waits"], ["waits"]),
        ("-stages,+failures,-failures", [each for each in ALL if each not in {"stages", "failures"}]),
        ([], []),
        *((f"-{name}", [each for each in ALL if each != name]) for name in ALL),
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


@pytest.mark.usefixtures("_end")
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


@pytest.mark.usefixtures("_end")
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


@pytest.mark.usefixtures("_end")
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


#: Hooks, and the sources that need them.
LACKS = {
    "torch.utils.data.dataloader._BaseDataLoaderIter": ["stages", "loading"],
    "torch._C._distributed_c10d._get_handler": ["waits"],
    "torch.distributed.c10d_logger._WaitCounter": ["process_groups"],
}


def test_torch_that_lacks_a_hook_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its sources stay off and have left nothing, the others run, and one warning names each."""
    with monitel.torch.instrument():
        pass
    before = snapshot()
    caplog.set_level(logging.WARNING, "monitel.torch")
    for lacks, missing in LACKS.items():
        with monkeypatch.context() as patch:
            patch.delattr(lacks)
            for _ in range(2):
                with monitel.torch.instrument(window_size=30.0) as running:
                    assert missing == [*running.missing]
                    assert all(lacks.rpartition(".")[2] in text for text in running.missing.values())
                    assert [name for name in ALL if name not in missing] == [*running.sources]
        assert missing == [record.getMessage().split(" ")[4] for record in caplog.records]
        caplog.clear()  # the records have exceptions, whose frames have Stats
    assert [] == changed(before, snapshot())


def test_source_that_fails_leaves_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one source cannot be installed, for a reason that nobody foresaw, those before it are removed."""
    failing = ModuleType("IPython")
    failing.get_ipython = lambda: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", failing)
    with monitel.torch.instrument(sources="-failures"):
        pass
    before = snapshot()
    with pytest.raises(ZeroDivisionError):
        monitel.torch.instrument()
    assert [] == changed(before, snapshot())
    train(work, 2)
    assert monitel.get_step() is None


@pytest.mark.usefixtures("unraisable")
def test_event_handler_that_raises_does_not_reach_torch(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    """Not the optimizer, the loader, a checkpoint, nor the end. Each window is logged, and torch is restored."""
    received: list[str] = []

    def fail(event: monitel.Event) -> None:
        received.append(event.window.name if event.window else event.name)
        raise OSError("no route")

    with monitel.torch.instrument():
        sgd().step()
    before = snapshot()
    handle = monitel.register_event_handler(fail)
    running = monitel.torch.instrument(window_size=30.0)
    for _ in work.loader(3):
        work.step()
        torch.save(5, io.BytesIO())
    assert {"training.step.duration", "training.stage.duration"} == {*received}
    received.clear()
    running.uninstrument()
    monitel.unregister_event_handler(handle)
    assert ["training.stage.duration"] * 5 + ["training.step.duration"] == sorted(received)
    assert [] == changed(before, snapshot())
    caplog.clear()


PYTHON = """\
import sys
import monitel
print("torch" in sys.modules)
import monitel.torch, monitel.testing
running = monitel.torch.instrument(window_size=float("inf"))
print("torch._dynamo" in sys.modules)
import torch

def step(x):
    return x * 2

with monitel.testing.capture_events() as events:
    for number in range(3):
        torch.compile(step, backend="eager", fullgraph=True)(torch.full((2,), 1.0 + number))
    monitel.flush()
    running.uninstrument()
print([event.name for event in events if not event.window])
print([each for each in sys.meta_path if "monitel" in type(each).__module__])
monitel.register_event_handler(lambda event: print(event.severity.name, event.name, event.data["exception.message"]))
monitel.torch.instrument()
raise ValueError("no such shard")
"""


def test_compiler_is_observed_as_soon_as_it_is_loaded(run: Run) -> None:
    """``instrument()`` does not load it. The import hook is removed; a process that fails logs that before its end."""
    ended = run("-c", PYTHON, returncode=1, fresh=True)
    assert [
        *("False", "False", "['torch.compile.started', 'torch.compile']", "[]"),
        "FATAL exception no such shard",
    ] == ended.stdout.splitlines(), ended.stderr
    assert ended.stderr.endswith("ValueError: no such shard\n")
