"""The same calls to torch.profiler and to monitel.profiler: the same, but for what docs/profiler.md lists."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from monitel import profiler as ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

theirs: Any = pytest.importorskip("torch.profiler", reason="compares with torch.profiler: torch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

BOTH = [pytest.param(theirs, id="torch"), pytest.param(ours, id="monitel")]


@pytest.fixture(autouse=True)
def _no_steps() -> Iterator[None]:
    yield
    for each in (ours, theirs):
        each.KinetoStepTracker._step_dict.clear()
        each.KinetoStepTracker._current_step = 0


def outcome(call: Callable[[Any], Any], module: Any) -> Any:
    """Give what a call comes to: its result, or the type of its exception."""
    try:
        return call(module)
    except Exception as error:
        return type(error)


def test_names() -> None:
    """Every public name of torch.profiler is here, and the others that its users import."""
    assert set(theirs.__all__) <= set(ours.__all__)
    for name in (*theirs.__all__, "KinetoStepTracker", "itt", "_KinetoProfile", "_ExperimentalConfig"):
        assert hasattr(ours, name)
    assert set(theirs.itt.__all__) == set(ours.itt.__all__)


@pytest.mark.parametrize(
    "path",
    [
        *("profile", "_KinetoProfile", "schedule", "tensorboard_trace_handler", "record_function"),
        *("supported_activities", "_optimizer_post_hook", "itt.range", "itt.mark", "itt.range_push"),
        *(f"KinetoStepTracker.{name}" for name in ("init_step_count", "erase_step_count", "increment_step")),
        *(
            f"profile.{name}"
            for name in (
                *("start", "stop", "step", "export_chrome_trace", "export_stacks", "toggle_collection_dynamic"),
                *("key_averages", "events", "add_metadata", "add_metadata_json", "preset_metadata_json"),
                *("set_custom_trace_id_callback", "get_trace_id", "export_memory_timeline"),
                *("prepare_trace", "start_trace", "stop_trace"),
            )
        ),
        *(
            f"ExecutionTraceObserver.{name}"
            for name in (
                *("register_callback", "unregister_callback", "start", "stop", "cleanup", "is_running"),
                *("get_output_file_path", "get_resources_dir", "get_resources_dir_for_et_path"),
                *("set_extra_resource_collection", "build_execution_trace_obs_from_env"),
            )
        ),
    ],
)
def test_signatures(path: str) -> None:
    """The same parameters, in the same order, with the same defaults."""

    def parameters(module: Any) -> list[Any]:
        found = module
        for part in path.split("."):
            found = getattr(found, part)
        return [(each.name, each.kind, each.default) for each in inspect.signature(found).parameters.values()]

    assert parameters(theirs) == parameters(ours)


def test_experimental_config() -> None:
    """The same parameters, which torch tells in a docstring."""
    documented = re.findall(r"(\w+): [^,]*? = ", theirs._ExperimentalConfig.__init__.__doc__.split("->")[0])
    assert documented == list(inspect.signature(ours._ExperimentalConfig).parameters)


@pytest.mark.parametrize("name", ["ProfilerAction", "ProfilerActivity", "DeviceType"])
def test_enums(name: str) -> None:
    """The same members with the same numbers."""

    def members(module: Any) -> Any:
        return {key: int(getattr(each, "value", each)) for key, each in getattr(module, name).__members__.items()}

    assert members(theirs) == members(ours)


def test_every_small_schedule() -> None:
    """1,296 schedules give the same 30 actions."""
    keys = ("wait", "warmup", "active", "repeat", "skip_first", "skip_first_wait")
    spans = (range(3), range(3), range(1, 4), range(3), range(4), (0, 1, 2, -1))
    for numbers in itertools.product(*spans):
        arguments = dict(zip(keys, numbers, strict=True))
        first, second = (module.schedule(**arguments) for module in (theirs, ours))
        assert [first(step).name for step in range(30)] == [second(step).name for step in range(30)]


@pytest.mark.parametrize("wrong", [{"wait": -1}, {"active": 0}, {"repeat": -2}, {"skip_first": -1}, {"warmup": -9}])
def test_schedule_errors(wrong: dict[str, int]) -> None:
    """The same errors, word for word."""
    said = []
    for module in (theirs, ours):
        with pytest.raises(AssertionError) as caught:
            module.schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})
        said.append(str(caught.value))
    assert said[0] == said[1]


def lived(module: Any, letters: str, steps: int) -> Any:
    """Run a profile by a schedule, and note all that a user can see of it."""
    actions = dict(zip("NWRS", list(module.ProfilerAction), strict=False))
    log: list[Any] = []

    class Observer:
        """Hears of recordings."""

        def start(self) -> None:
            log.append("start")

        def stop(self) -> None:
            log.append("stop")

        def cleanup(self) -> None:
            log.append("cleanup")

    def events(prof: Any) -> list[Any]:
        return [(event.name, event.trace_name, event.cpu_parent and event.cpu_parent.name) for event in prof.events()]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with module.profile(
            schedule=lambda step: actions[letters[step % len(letters)]],
            on_trace_ready=lambda prof: log.append((prof.step_num, prof.current_action.name, events(prof))),
            execution_trace_observer=Observer(),
        ) as prof:
            for step in range(steps):
                with module.record_function("outer"), module.record_function(f"inner {step}"):
                    pass
                prof.step()
    said = [str(each.message) for each in caught if "Incorrect" in str(each.message)]
    return log, said, prof.step_num, prof.current_action.name


@pytest.mark.parametrize(
    ("letters", "steps"),
    [
        *(("NWRS", 9), ("NWRS", 8), ("NWRS", 7), ("S", 4), ("WS", 6), ("WRRS", 9), ("NS", 5), ("NNNS", 3)),
        *(("R", 3), ("RS", 5), ("NRRRRS", 7), ("WWS", 5), ("NR", 3), ("NWRN", 3)),
    ],
)
def test_lifecycle(letters: str, steps: int) -> None:
    """Recordings, callbacks with what they see, events with their parents, warnings: all the same."""
    assert lived(theirs, letters, steps) == lived(ours, letters, steps)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.profile().events(),
        lambda m: m.profile().key_averages(),
        lambda m: m.profile().export_chrome_trace("x"),
        lambda m: m.profile().export_stacks("x"),
        lambda m: m.profile().stop(),
        lambda m: m.profile().step(),
        lambda m: m.profile().get_trace_id(),
        lambda m: m.profile().toggle_collection_dynamic(False, [m.ProfilerActivity.CPU]),
        lambda m: m.profile([m.ProfilerActivity.CPU]),
        lambda m: m.profile(activities=[]),
        lambda m: m.profile(activities=[m.ProfilerActivity.CPU] * 2),
        lambda m: m.profile(activities=[m.ProfilerActivity.CPU, "CPU"]),
        lambda m: m.profile(activities=[{m.ProfilerActivity.CPU: []}, m.ProfilerActivity.CPU]),
        lambda m: m.profile(schedule=lambda _: m.ProfilerAction.DEVICE_STOPPED),
        lambda m: m.profile(post_processing_timeout_s=-1).start(),
        lambda m: m.profile(use_cuda=False).use_device,
        lambda m: m.profile().export_memory_timeline("x.html"),
        lambda m: m.record_function("a").__exit__(None, None, None),
        lambda m: m.record_function("a").args,
        lambda m: m.record_function("a", "b").args,
        lambda m: m.kineto_available(),
        lambda m: {each.name for each in m.supported_activities()},
        lambda m: m.ExecutionTraceObserver().is_registered,
        lambda m: m.ExecutionTraceObserver().get_output_file_path(),
        lambda m: m.ExecutionTraceObserver().get_resources_dir(),
        lambda m: m.ExecutionTraceObserver.build_execution_trace_obs_from_env(),
        lambda m: [m.KinetoStepTracker.increment_step(each) for each in "abbaab"],
        lambda m: [m.KinetoStepTracker.erase_step_count(each) for each in "ab"],
    ],
)
def test_calls(call: Callable[[Any], Any]) -> None:
    """The same results, and the same types of errors."""
    assert outcome(call, theirs) == outcome(call, ours)


def nested(module: Any) -> Any:
    """Record nested labels."""
    with module.profile() as prof:
        for _ in range(3):
            with module.record_function("outer"):
                with module.record_function("first"):
                    sum(range(1000))
                with module.record_function("second" * 20, "details"):
                    pass
    return prof


@pytest.mark.parametrize(
    "arguments",
    [
        *({}, {"sort_by": "count"}, {"sort_by": "cpu_time_total", "row_limit": 1}, {"header": "above"}),
        *({"top_level_events_only": True}, {"time_unit": "ms"}, {"time_unit": "s", "max_name_column_width": 20}),
        *({"max_name_column_width": None}, {"row_limit": -1}, {"sort_by": "self_cuda_time_total"}),
    ],
)
@pytest.mark.parametrize("averaged", [True, False])
def test_tables(arguments: dict[str, Any], averaged: bool) -> None:
    """Tables have the same layout to the character, but for the numbers."""

    def table(module: Any) -> str:
        prof = nested(module)
        text: str = (prof.key_averages() if averaged else prof.events()).table(**arguments)
        return re.sub(r" *[0-9.]+(us|ms|s|%)", " #", text)

    assert table(theirs) == table(ours)


def test_averages() -> None:
    """The same keys, counts and parents; times of the same kind; the total adds the same up."""

    def seen(module: Any) -> Any:
        averages = nested(module).key_averages()
        total = averages.total_average()
        whole = sum(each.self_cpu_time_total for each in averages)
        return (
            [(each.key, each.count, each.cpu_time == each.cpu_time_total / each.count) for each in averages],
            (total.key, total.count, total.self_cpu_time_total == pytest.approx(whole)),
            averages.self_cpu_time_total == pytest.approx(whole),
        )

    assert seen(theirs) == seen(ours)


def test_event_attributes() -> None:
    """What is the same for every user's label."""

    def seen(module: Any) -> Any:
        event = nested(module).events()[1]
        names = ("name", "trace_name", "key", "count", "scope", "is_user_annotation", "is_async", "is_remote")
        more = ("node_id", "sequence_nr", "is_legacy", "flops", "overload_name", "cpu_memory_usage", "device_time")
        values = [getattr(event, name) for name in (*names, *more)]
        return values, event.device_type.name, [child.name for child in event.cpu_parent.cpu_children]

    assert seen(theirs) == seen(ours)


def test_traces(tmp_path: Path) -> None:
    """A trace of ours has every key and every slice that torch's has, with the same fields and kinds of values."""
    kinds, slices = [], []
    for module in (theirs, ours):
        prof = nested(module)
        path = tmp_path / f"{module.__name__}.json"
        prof.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
        kinds.append({key: type(value) for key, value in trace.items()})
        labels = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
        slices.append([{key: type(value) for key, value in event.items()} | {"is": event["name"]} for event in labels])
    assert kinds[0] == kinds[1]
    assert slices[0] == slices[1]


@pytest.mark.parametrize("module", BOTH)
def test_handler_names(module: Any, tmp_path: Path) -> None:
    """TensorBoard finds both kinds of files."""
    with module.profile(on_trace_ready=module.tensorboard_trace_handler(str(tmp_path), "w")):
        pass
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"w\.\d+\.pt\.trace\.json", path.name)


def test_trace_ids() -> None:
    """Of the same form, and by the same callback."""
    for module in (theirs, ours):
        with module.profile() as prof:
            assert re.fullmatch("[0-9A-F]{32}", prof.get_trace_id())
        with module.profile(custom_trace_id_callback=lambda: "mine") as prof:
            assert "mine" == prof.get_trace_id()


_OPTIMIZERS = """
import os
import torch
os.environ["KINETO_USE_DAEMON"] = "1"  # after torch, which would look for the daemon
from monitel.profiler import KinetoStepTracker, profile
weight = torch.nn.Parameter(torch.ones(1))
optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([weight], lr=0.1)]
with profile() as prof:
    for _ in range(3):
        weight.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        prof.step()
    print(dict(KinetoStepTracker._step_dict), KinetoStepTracker.current_step())
"""


def test_optimizer_steps() -> None:
    """Under KINETO_USE_DAEMON torch's optimizers count, all under one name: two count twice, as in torch."""
    done = subprocess.run([sys.executable, "-c", _OPTIMIZERS], check=True, capture_output=True, text=True, timeout=120)
    assert "{'ProfilerStep': 3, 'Optimizer': 6} 6" == done.stdout.splitlines()[-1]
