"""The names of torch.profiler work without torch: schedules, profiles, their results, and traces."""

import asyncio
import gc
import os
import re
import threading
import time
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from tests.support.checks import SetEnv
from tests.support.producers import record_ranges
from tests.unit.profiler.traces import exported, lines, read, slices

from monitel import get_step, profiler, set_step
from monitel.profiler import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)
from monitel.testing import ManualClock

pytestmark = pytest.mark.usefixtures("clean_profiler")


def names(events: Any) -> list[str]:
    return [each.trace_name for each in events]


def test_profile_has_events_with_times_parents_and_averages(clock: ManualClock, tmp_path: Path) -> None:
    """Times are microseconds since the start; self times are without the children. Lists write traces and stacks."""
    with pytest.warns(UserWarning, match="with_stack=True"):
        prof = profile(with_stack=True)
    with prof:
        clock.advance(1)
        for seconds in (1, 3):
            with record_function("a", "x"):
                clock.advance(seconds)
                with record_function("b"):
                    clock.advance(1)
    a, b, *_ = prof.events()
    assert ([(1e6, 3e6), (2e6, 3e6)], [None, a]) == ([tuple(each.time_range) for each in (a, b)], [None, b.cpu_parent])
    assert ([b], "x", threading.get_native_id()) == (a.cpu_children, a.args, a.thread)
    assert (2e6, 1e6) == (a.cpu_time_total, a.self_cpu_time_total)
    averages = prof.key_averages()
    assert [("a", 2, 6e6, 4e6, 3e6), ("b", 2, 2e6, 2e6, 1e6)] == [
        (each.key, each.count, each.cpu_time_total, each.self_cpu_time_total, each.cpu_time) for each in averages
    ]
    total = averages.total_average()
    assert ("Total", 4, 6e6) == (total.key, total.count, total.self_cpu_time_total)
    rows = averages.table(sort_by="self_cpu_time_total", row_limit=1).splitlines()
    assert ["a", "66.67%", "4.000s", "100.00%", "6.000s", "3.000s", "2"] == rows[3].split()
    assert "Self CPU time total: 6.000s" == rows[-1]
    prof.export_stacks(tmp_path / "stacks.txt")
    assert "a 4000000\na;b 2000000\n" == (tmp_path / "stacks.txt").read_text()
    chosen = profiler.EventList((each for each in prof.events() if each.name == "b"), use_device=None, with_flops=False)
    lists: list[tuple[Any, list[Any]]] = [
        (chosen, [("b", "X", 2e6, 1e6), ("b", "X", 6e6, 1e6)]),
        (averages, [("a", "X", 0.0, 6e6), ("b", "X", 6e6, 2e6)]),  # one after the other
        (profiler.EventList(), []),
    ]
    for each, expected in lists:
        each.export_chrome_trace(tmp_path / "trace.json")
        found = [(row["name"], row["ph"], row["ts"], row["dur"]) for row in read(tmp_path / "trace.json")]
        assert expected == found
    with profile() as other, record_function("a; b"):
        clock.advance(1)
    with pytest.raises(AssertionError, match="requires with_stack=True"):
        other.export_stacks(tmp_path / "none.txt")
    other.with_stack = True
    other.export_stacks(tmp_path / "stacks.txt")
    assert "a__b 1000000\n" == (tmp_path / "stacks.txt").read_text()


def test_profile_has_the_ranges_that_begin_while_it_records(clock: ManualClock) -> None:
    """A nested profile has those within it. A range that runs at the stop ends there. Collection can be switched."""
    outer, inner = profile(), profile()
    with pytest.raises(AssertionError, match=r"^Profiler must be initialized before accessing events$"):
        outer.events()
    with record_function("before"):
        outer.start()
    with record_function("a"), inner, record_function("b"):
        clock.advance(1)
    for name, on in (("c", True), ("d", False), ("e", True)):
        outer.toggle_collection_dynamic(on, [ProfilerActivity.CPU])
        with record_function(name):
            clock.advance(1)
            if name == "e":
                outer.stop()
                clock.advance(1)
    found = [(each.name, each.cpu_time_total, each.finished) for each in outer.events()]
    assert [*((name, 1e6, True) for name in "abc"), ("e", 1e6, False)] == found
    assert ["b"] == names(inner.events())
    with profile(activities=[{ProfilerActivity.CPU: ["CPU_OP"]}]) as prof, record_function("a"):
        pass
    assert [] == names(prof.events())


def test_schedule_drives_cycles_and_their_callback(tmp_path: Path) -> None:
    """``on_trace_ready`` is called after each recorded cycle; the handler writes a file of it."""
    seen = []
    write = tensorboard_trace_handler(str(tmp_path / "log"), "rank0", use_gzip=True)

    def ready(prof: Any) -> None:
        seen.append((prof.step_num, names(prof.events())))
        write(prof)

    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(schedule=plan, on_trace_ready=ready, acc_events=True) as prof:
        for step in range(10):
            record_ranges(f"{step}")
            prof.step()
    cycles = [[name for step in steps for name in (f"ProfilerStep#{step}", f"{step}")] for steps in ((2, 3), (6, 7))]
    assert [(4, cycles[0]), (8, cycles[0] + cycles[1])] == seen
    assert cycles[0] + cycles[1] == names(prof.events())
    assert {"ProfilerStep*": 4} == {each.key: each.count for each in prof.key_averages() if "Step" in each.key}
    paths = sorted((tmp_path / "log").glob("rank0.*.pt.trace.json.gz"))
    assert cycles == [[each["name"] for each in slices(read(path))] for path in paths]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of wrong orders, and of cleared events
@pytest.mark.parametrize(
    ("letters", "cycles"),
    [("RSRN", ["01"]), ("RNRW", []), ("WNWR", []), ("SSWS", ["0", "1", "3"]), ("RWSN", ["2"]), ("SRRS", ["0", "123"])],
)
def test_every_order_of_actions_works(letters: str, cycles: list[str]) -> None:
    """Torch crashes with some: RECORD before WARMUP or NONE has no trace, and each saved cycle is complete."""
    actions = dict(zip("NWRS", ProfilerAction, strict=False))
    ready: list[str] = []
    with profile(
        schedule=lambda step: actions[letters[step]] if step < len(letters) else ProfilerAction.NONE,
        on_trace_ready=lambda prof: ready.append("".join(each for each in names(prof.events()) if "#" not in each)),
    ) as prof:
        for step in range(5):
            record_ranges(f"{step}")
            prof.step()
    assert cycles == ready


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_exception_of_the_callback_is_raised_once_and_the_next_cycle_is_recorded() -> None:
    """``step()`` raises it, and the next cycle is complete."""
    found: list[list[str]] = []

    def ready(prof: Any) -> None:
        found.append(names(prof.events()))
        if len(found) == 1:
            raise OSError("disk full")

    plan = schedule(wait=0, warmup=0, active=1)
    with profile(schedule=plan, on_trace_ready=ready, acc_events=True) as prof:
        with pytest.raises(OSError, match="disk full"):
            prof.step()
        record_ranges("a")
        prof.step()
    steps = ["ProfilerStep#0", "ProfilerStep#1", "a"]
    assert [steps[:1], steps, [*steps, "ProfilerStep#2"]] == found


def test_garbage_collections_are_ranges_on_request() -> None:
    """``record_python_gc_info`` is the only option of ``_ExperimentalConfig`` with an effect."""
    config = profiler._ExperimentalConfig(record_python_gc_info=True)
    with profile(experimental_config=config) as prof, record_function("a"):
        gc.collect()
    (pause,) = [each for each in prof.events() if isinstance(each.args, dict) and each.args.get("generation") == 2]
    assert ("Python GC", "a") == (pause.name, pause.cpu_parent and pause.cpu_parent.name)


def test_trace_has_everything_about_the_ranges(clock: ManualClock, tmp_path: Path) -> None:
    """Names, times in microseconds, process, thread, args, step and metadata, in strict JSON."""
    set_step(7)
    with profile(custom_trace_id_callback=lambda: "an id") as prof:
        clock.advance(0.25)
        with record_function('a "\\\n\ud800', {"n": 1, "loss": float("nan"), "object": object}):
            clock.advance(1)
            with record_function("b", "details"):
                clock.advance(0.000_002_05)
    prof.add_metadata("run", 'x"\\\n')
    prof.add_metadata_json("settings", '{"lr": 0.1}')
    with pytest.raises(ValueError, match="must be valid JSON"):
        prof.add_metadata_json("settings", "NaN")
    prof.export_chrome_trace(tmp_path / "trace.json")
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    trace = read(tmp_path / "trace.json")
    a, b = slices(trace)
    assert slices(read(tmp_path / "trace.json.gz")) == [a, b]
    assert ('a "\\\n\ufffd', "b") == (a["name"], b["name"])
    assert (1_000_002.05, 2.05, 1e6) == (a["dur"], b["dur"], b["ts"] - a["ts"])
    assert (clock.time_ns() - 1_000_002_050) / 1000 == trace["baseTimeNanoseconds"] / 1000 + a["ts"]
    assert (os.getpid(), threading.get_native_id()) == (a["pid"], a["tid"])
    assert (7, 1, "nan", "details") == (get_step(), a["args"]["n"], a["args"]["loss"], b["args"]["args"])
    assert [7, 7] == [each["args"]["step"] for each in (a, b)]
    assert ("an id", 'x"\\\n', {"lr": 0.1}) == (trace["trace_id"], trace["run"], trace["settings"])


def test_wrong_orders_are_warnings_and_change_nothing() -> None:
    """A second start or stop; and events of an earlier cycle are gone, unless ``acc_events`` keeps them."""
    ready: list[Any] = []
    prof = profile(schedule=schedule(wait=0, warmup=1, active=1), on_trace_ready=ready.append)
    prof.start()
    prof.step()
    with record_function("a"), pytest.warns(UserWarning, match="already running"):
        prof.start()
    with pytest.warns(UserWarning, match="clears events"):
        prof.step()
    prof.step()
    record_ranges("b")
    prof.stop()
    with pytest.warns(UserWarning, match="not running"):
        prof.stop()
    assert (["ProfilerStep#3", "b"], [prof] * 2) == (names(prof.events()), ready)


def test_range_that_outlives_its_parent_is_not_its_child(clock: ManualClock, tmp_path: Path) -> None:
    """As steps of an epoch can. In a trace it goes to a second line; each thread has its own."""
    with profile(schedule=schedule(wait=0, warmup=1, active=2, repeat=1)) as prof:
        prof.step()
        clock.advance(1)
        with record_function("epoch"):
            thread = threading.Thread(target=record_ranges, args=["in thread"], name="loader")
            thread.start()
            thread.join(60)
            for _ in range(2):
                clock.advance(1)
                with record_function("batch"):
                    clock.advance(1)
                prof.step()
    first, *events = [event for event in prof.events() if event.name != "in thread"]
    assert [
        *(("ProfilerStep#1", None), ("epoch", None), ("batch", "epoch")),
        *(("ProfilerStep#2", "epoch"), ("batch", "ProfilerStep#2")),
    ] == [(event.trace_name, event.cpu_parent and event.cpu_parent.trace_name) for event in (first, *events)]
    total = events[-1].time_range.end - events[0].time_range.start
    assert total == sum(event.self_cpu_time_total for event in events)
    assert {
        "MainThread": ["ProfilerStep#1", "batch", "ProfilerStep#2", "batch"],
        "MainThread, 2": ["epoch"],
        "loader": ["in thread"],
    } == lines(exported(prof, tmp_path))


def test_trace_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    """The previous file stays until the new one is complete; a missing folder is an error that names it."""
    path, failing, found = tmp_path / "trace.json", [True], []
    path.write_text("previous")

    class Value:
        def __str__(self) -> str:
            found.append(path.read_text())
            if failing:
                raise KeyboardInterrupt
            return "value"

    with profile() as prof, record_function("a", {"value": Value()}):
        pass
    with pytest.raises(KeyboardInterrupt):
        prof.export_chrome_trace(path)
    assert (["trace.json"], "previous") == ([each.name for each in tmp_path.iterdir()], path.read_text())
    failing.clear()
    prof.export_chrome_trace(path)
    assert (["trace.json"], {"previous"}) == ([each.name for each in tmp_path.iterdir()], {*found})
    assert ["value"] == [each["args"]["value"] for each in slices(read(path))]
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "missing")):
        prof.export_chrome_trace(tmp_path / "missing" / "trace.json")


def test_full_disk_does_not_stop_the_training(caplog: pytest.LogCaptureFixture) -> None:
    """A trace that cannot be written is logged, and the next step is made, as in torch."""
    plan = schedule(wait=0, warmup=1, active=1)
    with profile(
        schedule=plan, on_trace_ready=lambda prof: prof.export_chrome_trace("/dev/full"), acc_events=True
    ) as prof:
        for _ in range(4):
            prof.step()
    assert {"the trace was not written to /dev/full: [Errno 28] No space left on device"} == {*caplog.messages}
    assert 4 == prof.step_num


def test_execution_trace_is_a_graph_of_the_ranges_with_their_ids_in_the_traces(tmp_path: Path) -> None:
    """``rf_id`` is ``Record function id`` of the trace, in each cycle; the file is written when the profile is left."""
    path, traces = tmp_path / "graph.json", list[Path]()
    observer = profiler.ExecutionTraceObserver().register_callback(path)

    def ready(prof: Any) -> None:
        traces.append(tmp_path / f"{len(traces)}.json")
        prof.export_chrome_trace(traces[-1])

    plan = schedule(wait=1, warmup=1, active=1, repeat=2)
    with profile(schedule=plan, execution_trace_observer=observer, on_trace_ready=ready, acc_events=True) as prof:
        for _ in range(6):
            with record_function("a", {"Record function id": "mine"}), record_function("b"):
                pass
            prof.step()
        with pytest.MonkeyPatch.context() as forked:  # in a child, which has copies of the parent's observers
            forked.setattr(os, "getpid", lambda: -1)
            copy(observer).unregister_callback()
        assert not path.exists()
    nodes = read(path)["nodes"]
    named = {each["id"]: each["name"] for each in nodes}
    found = [(each["name"], named[each["ctrl_deps"]], rf_id(each)) for each in nodes if "[" not in each["name"]]
    assert [
        pair
        for step in ("ProfilerStep#2", "ProfilerStep#5")
        for pair in ((step, "[pytorch|profiler|execution_trace|thread]"), ("a", step), ("b", "a"))
    ] == [(name, parent) for name, parent, _ in found]
    ids = [(each["name"], each["args"]["Record function id"]) for trace in traces for each in slices(read(trace))]
    assert (ids, 6) == ([(name, number) for name, _, number in found], len({number for _, number in ids}))


def rf_id(node: Any) -> Any:
    return next(each["value"] for each in node["attrs"] if each["name"] == "rf_id")


def test_observers_are_independent(tmp_path: Path, unraisable: list[BaseException | None]) -> None:
    """Each writes a file, at the latest when it is destructed; without a folder only ``unregister_callback`` raises."""
    folder = tmp_path / "gone"
    folder.mkdir()
    paths = [tmp_path / "1.json", tmp_path / "2.json.gz", *(folder / f"{number}" for number in range(3))]
    first, second, *others = (profiler.ExecutionTraceObserver().register_callback(each) for each in paths)
    folder.rmdir()
    first.start()
    second.start()
    with profile(execution_trace_observer=others.pop()):
        pass
    first.cleanup()
    with pytest.raises(FileNotFoundError, match=str(folder)):
        others.pop().unregister_callback()
    others.clear()
    del second
    gc.collect()
    assert ([], ["1.json", "2.json.gz"]) == (unraisable, sorted(path.name for path in tmp_path.iterdir()))
    unregistered = profiler.ExecutionTraceObserver()
    unregistered.start()
    assert not unregistered.is_running()
    assert unregistered.get_output_file_path() is None


def test_trace_has_the_rank(tmp_path: Path, setenv: SetEnv) -> None:
    """Without torch.distributed it is the launcher's, where HolisticTraceAnalysis looks for it; without one, none."""
    found = []
    for value in ("3", "?"):
        setenv(SLURM_PROCID=value, SLURM_NTASKS="8")
        with profile() as prof, record_function("a", {"rank": 5}):
            pass
        prof.export_chrome_trace(tmp_path / "trace.json")
        text = (tmp_path / "trace.json").read_text()
        found.append((read(tmp_path / "trace.json").get("distributedInfo"), re.findall(r'"rank":\s+(\d+)', text)))
    assert [({"rank": 3, "world_size": 8}, ["3"]), (None, [])] == found


def test_traces_of_ranks_replace_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks with one worker name that write at one time have two files."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_000)
    with profile() as prof:
        pass
    for _ in range(2):
        tensorboard_trace_handler(tmp_path, "worker")(prof)
    expected = {"worker.1000.pt.trace.json", "worker.1001.pt.trace.json"}
    assert expected == {each.name for each in tmp_path.iterdir()}


def test_what_needs_torch_is_refused_or_warned_about_once() -> None:
    """A device is an error with a hint, an option without a source is a warning, and nothing pretends to work."""
    with pytest.raises(RuntimeError, match=r"ProfilerActivity.CUDA: .*torch\.profiler"):
        profile(activities=[ProfilerActivity.CUDA])
    with pytest.raises(ValueError, match=r"use torch\.profiler\.profile"):
        profile().export_memory_timeline("x.html")
    with pytest.warns(UserWarning, match="without torch"):
        profile(record_shapes=True)
    profile(record_shapes=True)  # a second warning would fail the test
    assert ({ProfilerActivity.CPU}, True) == (profiler.supported_activities(), profiler.kineto_available())
    with profiler.itt.range("mark"):
        assert not profiler.itt.is_available()
    tracker = profiler.KinetoStepTracker
    assert (1, 2, 3) == tuple(tracker.increment_step(each) for each in ("a", "b", "b"))
    profiler._optimizer_post_hook(None, (), {})
    assert 4 == tracker.current_step()


def test_self_times_of_interleaved_tasks(clock: ManualClock) -> None:
    """Self times exclude ranges of the same task, not those of other tasks in the same time."""

    async def job() -> None:
        with record_function("job"):
            clock.advance(1)
            await asyncio.sleep(0)
            clock.advance(1)

    async def main() -> None:
        with record_function("main"):
            await asyncio.gather(job(), job())

    with profile() as prof:
        asyncio.run(main())
    assert [("main", None, 4e6), ("job", None, 3e6), ("job", None, 3e6)] == [
        (event.name, event.cpu_parent, event.self_cpu_time_total) for event in prof.events()
    ]
