"""Equal calls of torch.profiler and of monitel.profiler have equal results, except as the reference states."""

import inspect
import itertools
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch.profiler as theirs
from tests.support.scripts import Run

from monitel import profiler as ours

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def _no_steps() -> Iterator[None]:
    yield
    for each in (ours, theirs):
        each.KinetoStepTracker._step_dict.clear()
        each.KinetoStepTracker._current_step = 0


def outcome(call: Callable[[Any], Any], module: Any) -> Any:
    try:
        return call(module)
    except Exception as error:
        return type(error)


def exported(events: Any) -> Any:
    """Return the trace of a profile, or of a list of events."""
    events.export_chrome_trace("trace.json")
    return json.loads(Path("trace.json").read_text())


def kinds(values: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in values.items()}


def table(events: Any, **options: Any) -> str:
    """Return a table without its numbers."""
    return re.sub(r" *[0-9.]+(us|ms|s|%)", " #", events.table(**options))


def test_names() -> None:
    """Every public name of torch.profiler exists, and the private names that its users import."""
    assert set(theirs.__all__) <= set(ours.__all__)
    tools = {"Any", "TypeVarTuple", "Unpack", "_Ts", "is_fbcode", "os"}  # that torch's module imports for itself
    modules = {"profiler", "_utils", "_memory_profiler", "_pattern_matcher", "_cupti_monitor", "_chrome_trace_export"}
    named = {name for name in vars(theirs) if not name.startswith("__")} - tools - modules
    assert [] == sorted(name for name in named if not hasattr(ours, name))
    assert theirs.Optimizer is ours.Optimizer
    assert theirs.register_optimizer_step_post_hook is ours.register_optimizer_step_post_hook
    assert set(theirs.itt.__all__) == set(ours.itt.__all__)


FUNCTIONS = ["schedule", "tensorboard_trace_handler", "supported_activities", "_optimizer_post_hook"]
CLASSES = ["profile", "_KinetoProfile", "record_function", "ExecutionTraceObserver", "KinetoStepTracker"]


def test_signatures() -> None:
    """Parameters, their order and their defaults are equal, of each public method too."""
    methods = [f"{each}.{name}" for each in CLASSES for name in dir(getattr(theirs, each)) if not name.startswith("_")]

    def parameters(module: Any) -> dict[str, Any]:
        names = [*FUNCTIONS, *CLASSES, *methods, *(f"itt.{name}" for name in theirs.itt.__all__)]
        found = {name: reduce(getattr, name.split("."), module) for name in names}
        return {
            name: [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]
            for name, function in found.items()
            if callable(function)
        }

    assert parameters(theirs) == parameters(ours)


def test_experimental_config() -> None:
    """The parameters are those in the docstring of torch's class."""
    documented = re.findall(r"(\w+): [^,]*? = ", theirs._ExperimentalConfig.__init__.__doc__.split("->")[0])
    assert documented == list(inspect.signature(ours._ExperimentalConfig).parameters)


def test_enums() -> None:
    """Members and their numbers are equal."""

    def members(module: Any) -> Any:
        enums = [getattr(module, name) for name in ("ProfilerAction", "ProfilerActivity", "DeviceType", "RecordScope")]
        return [{key: int(getattr(each, "value", each)) for key, each in enum.__members__.items()} for enum in enums]

    assert members(theirs) == members(ours)


def test_schedules() -> None:
    """144 schedules return equal actions for 30 steps; wrong ones have equal errors."""
    keys = ("wait", "warmup", "active", "repeat", "skip_first", "skip_first_wait")
    for numbers in itertools.product((0, 2), (0, 1), (1, 3), (0, 1, 2), (0, 3), (0, 1, -1)):
        arguments = dict(zip(keys, numbers, strict=True))
        first, second = (module.schedule(**arguments) for module in (theirs, ours))
        assert [first(step).name for step in range(30)] == [second(step).name for step in range(30)]
    for wrong in ({"wait": -1}, {"active": 0}, {"repeat": -2}, {"skip_first": -1}, {"warmup": -9}):
        with pytest.raises(AssertionError) as first:
            theirs.schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})
        with pytest.raises(AssertionError, match=f"^{re.escape(str(first.value))}$"):
            ours.schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})


def lifecycle(module: Any, letters: str, steps: int) -> Any:
    """Run a profile with a schedule, and return everything that a user can observe."""
    actions = dict(zip("NWRS", list(module.ProfilerAction), strict=False))
    log = Mock(observer=Mock(spec=["start", "stop", "cleanup"]))

    def events(prof: Any) -> list[Any]:
        return [(event.name, event.trace_name, event.cpu_parent and event.cpu_parent.name) for event in prof.events()]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with module.profile(
            schedule=lambda step: actions[letters[step % len(letters)]],
            on_trace_ready=lambda prof: log.ready(prof.step_num, prof.current_action.name, events(prof)),
            execution_trace_observer=log.observer,
        ) as prof:
            for step in range(steps):
                with module.record_function("outer"), module.record_function(f"inner {step}"):
                    pass
                prof.step()
    messages = [str(each.message) for each in caught if "Incorrect" in str(each.message)]
    return log.mock_calls, messages, prof.step_num, prof.current_action.name


@pytest.mark.parametrize(
    ("letters", "steps"),
    [
        *(("NWRS", 9), ("NWRS", 8), ("NWRS", 7), ("S", 4), ("WS", 6), ("WRRS", 9), ("NS", 5), ("NNNS", 3)),
        *(("R", 3), ("RS", 5), ("NRRRRS", 7), ("WWS", 5), ("NR", 3), ("NWRN", 3)),
    ],
)
def test_lifecycle(letters: str, steps: int) -> None:
    """Calls of observer and callback, events with their parents, and warnings are equal."""
    assert lifecycle(theirs, letters, steps) == lifecycle(ours, letters, steps)


CALLS: list[Callable[[Any], Any]] = [
    lambda m: m.profile().events(),
    lambda m: m.profile().key_averages(),
    lambda m: m.profile().export_chrome_trace("x"),
    lambda m: m.profile().export_stacks("x"),
    lambda m: m.profile().stop(),
    lambda m: m.profile().step(),
    lambda m: m.profile().get_trace_id(),
    lambda m: pickle.loads(pickle.dumps(m.profile())).current_action.name,
    lambda m: m.profile().toggle_collection_dynamic(False, [m.ProfilerActivity.CPU]),
    lambda m: m.profile([m.ProfilerActivity.CPU]),
    lambda m: m.profile(activities=[]),
    lambda m: m.profile(activities=[m.ProfilerActivity.CPU] * 2),
    lambda m: m.profile(activities=[m.ProfilerActivity.CPU, "CPU"]),
    lambda m: m.profile(activities=[{m.ProfilerActivity.CPU: []}, m.ProfilerActivity.CPU]),
    *(
        lambda m, names=names: m.profile(activities=[{m.ProfilerActivity.CPU: names}]).start()
        for names in (["user_annotation"], ["nope", "CPU_OP"], ["GPU_MEMCPY"], "CPU_OP", [1], None)
    ),
    lambda m: m.profile(activities=["CPU"]),
    lambda m: m.profile(activities=[{}]),
    lambda m: m.profile(activities=[{"CPU": []}]).start(),
    lambda m: m.profile(activities=m.ProfilerActivity.CPU),
    lambda m: m.itt.range_push("a"),
    lambda m: m.profile(schedule=lambda _: m.ProfilerAction.DEVICE_STOPPED),
    lambda m: m.profile(post_processing_timeout_s=-1).start(),
    lambda m: m.profile().export_memory_timeline("x.html"),
    lambda m: nested(m).events().table(sort_by=""),
    lambda m: m.record_function("a").__exit__(None, None, None),
    lambda m: m.record_function("a").args,
    lambda m: m.record_function("a", "b").args,
    lambda m: m.kineto_available(),
    lambda m: "CPU" in {each.name for each in m.supported_activities()},
    lambda m: m.ExecutionTraceObserver().is_registered,
    lambda m: m.ExecutionTraceObserver().get_output_file_path(),
    lambda m: m.ExecutionTraceObserver().get_resources_dir(),
    lambda m: m.ExecutionTraceObserver.build_execution_trace_obs_from_env(),
    lambda m: [m.KinetoStepTracker.increment_step(each) for each in "abbaab"],
    lambda m: [m.KinetoStepTracker.erase_step_count(each) for each in "ab"],
]


def test_calls() -> None:
    """Results, or types of errors, are equal."""
    for number, call in enumerate(CALLS):
        assert (number, outcome(call, theirs)) == (number, outcome(call, ours))


def nested(module: Any) -> Any:
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
        *({"row_limit": 0}, {"row_limit": None}, {"sort_by": "self_cpu_memory_usage"}, {"sort_by": "xpu_time"}),
    ],
)
@pytest.mark.parametrize("averaged", [True, False])
def test_tables(arguments: dict[str, Any], averaged: bool) -> None:
    """Tables are equal to the character, except for the numbers."""
    first, second = (nested(each).key_averages() if averaged else nested(each).events() for each in (theirs, ours))
    assert table(first, **arguments) == table(second, **arguments)


def test_event_attributes() -> None:
    """Every public attribute of torch's events and averages exists; those of a range are equal, except times."""
    other = r"add$|(self_)?cpu_time|device_resource|(id|external_id|thread|time_range|cpu_\w+|input_shapes|use_device)$"

    def seen(event: Any, names: list[str]) -> dict[str, Any]:
        values = {name: getattr(event, name) for name in names if not re.match("append_|set_cpu", name)}
        return {name: str(value).removesuffix(".0") for name, value in values.items() if not re.match(other, name)}

    for method in ("events", "key_averages"):
        expected, found = (getattr(nested(module), method)()[1] for module in (theirs, ours))
        names = [name for name in dir(expected) if not name.startswith("_")]
        assert seen(expected, names) == seen(found, names)
        assert expected.cpu_parent.name == found.cpu_parent.name
        assert ([], None) == (found.input_shapes, found.use_device)  # torch's device is that of the machine


def test_event_lists() -> None:
    """A list that a user makes of events has a table and a trace, with torch's fields."""

    def seen(module: Any) -> Any:
        events = nested(module).events()
        made = type(events)((each for each in events if each.name == "outer"), use_device=None)
        return [(each["name"], each["pid"], kinds(each)) for each in exported(made)], table(made)

    assert seen(theirs) == seen(ours)


COUNTING = """
import os, sys
if sys.argv[1] == "after torch":
    import torch
os.environ["KINETO_USE_DAEMON"] = "1"
if sys.argv[1] == "theirs":
    import torch.profiler as module
else:
    import monitel.profiler as module
    assert ("torch" in sys.modules) == (sys.argv[1] == "after torch")
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([weight], lr=0.1)]
tracker = module.KinetoStepTracker
with module.profile() as prof:
    print(dict(tracker._step_dict))
    for _ in range(3):
        weight.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        prof.step()
    print(dict(tracker._step_dict), tracker.current_step())
torch.compile(optimizers[0].step, backend="eager")()
print(dict(tracker._step_dict), tracker.current_step(), flush=True)
os._exit(0)  # torch waits for the daemon
"""


def test_steps_of_profiles_and_optimizers_are_counted(run: Run) -> None:
    """KINETO_USE_DAEMON at import counts them, whichever of torch and monitel.profiler is imported first."""
    orders = {"theirs": True, "before torch": True, "after torch": False}
    counted = [run("-W", "ignore", "-c", COUNTING, order, fresh=fresh).stdout for order, fresh in orders.items()]
    assert "{'Optimizer': 7} 7" == counted[0].splitlines()[-1]
    assert [counted[0]] * 2 == counted[1:]


@pytest.mark.usefixtures("two_ranks")
def test_ranks_of_torch_distributed() -> None:
    """``distributedInfo`` is torch's, in the same place and with the same spaces."""
    found = []
    for module in (theirs, ours):
        exported(nested(module))
        head = Path("trace.json").read_text().partition('"traceEvents"')[0]
        found.append(head.partition('"distributedInfo": ')[2].partition("\n")[0])
    assert '"rank": 0, "world_size": 2' in found[0]
    assert found[0] == found[1]


def test_traces() -> None:
    """Traces have equal keys and slices, with equal fields and types of values."""

    def seen(module: Any) -> Any:
        trace = exported(nested(module))
        slices = [each for each in trace["traceEvents"] if each.get("cat") == "user_annotation"]
        return kinds(trace), [(each["name"], kinds(each["args"]) | kinds(each)) for each in slices]

    assert seen(theirs) == seen(ours)
