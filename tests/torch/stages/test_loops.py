"""The stage under way, batches, backward and waits of all kinds, the end within a stage, and all this as ranges."""

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed._functional_collectives as functional
from tests.support.producers import run_together
from tests.support.receiver import Receiver
from tests.torch.known_work import STEP, Cycles, Work, logged_cycles, train
from tests.unit.profiler.traces import exported, lines
from torch import distributed

import monitel
import monitel.torch
import monitel_otlp
from monitel.blackbox.activity import describe
from monitel.profiler import profile, ranges, record_function
from monitel.training.activities import stage_now

Run = Callable[..., Cycles]


def _stage() -> str:
    found = stage_now()
    assert found is None or (found.thread, found.waits) == (threading.get_ident(), False)
    assert found is None or found.age_ns >= 0
    in_record = describe()["stage"]
    assert (None if found is None else found[:2]) == (None if in_record is None else in_record[:2])
    return "" if found is None else found.name


@pytest.mark.usefixtures("instrumented")
def test_stage_under_way() -> None:
    """Every part of the loop finds itself in its stage. Before the first backward nothing is known."""
    found: list[str] = []
    work = Work(lambda _seconds: found.append(_stage()))
    for _ in work.loader(3):
        work.forward().backward()
        work.takes(0)
        work.optimize()
        work.takes(32)
    assert ["", ""] == found[:2]
    assert ["data", "forward", "backward", "optimizer", "optimizer", "other"] == found[-6:]


def test_only_the_training_thread_that_is_alive() -> None:
    """Before the end of a cycle it is the newest thread with a backward; after its end there is none."""
    assert stage_now() is None
    with monitel.torch.instrument(sources="-waits,-compilation,-failures"):
        run_together(lambda: train(Work(float), 3))
        assert stage_now() is None
        torch.nn.Parameter(torch.ones(1)).sum().backward()  # the cycle has not ended
        assert stage_now() is None, "the thread that trained has ended, and no other one has trained"
    with monitel.torch.instrument(sources="-waits,-compilation,-failures", window_size=30.0):
        torch.nn.Parameter(torch.ones(1)).sum().backward()
        found = stage_now()
        assert found is not None
        assert ("other", threading.get_ident()) == (found.name, found.thread)
    assert stage_now() is None


@pytest.mark.parametrize("again", [False, True])
def test_uninstrument_within_a_stage(again: bool, work: Work, events: list[monitel.Event]) -> None:
    """The cycle under way is not reported. Instrumentation may begin in the same place."""
    running = monitel.torch.instrument(window_size=0.001)
    train(work, 3)
    work.forward(backward=running.uninstrument).backward()
    if again:
        running = monitel.torch.instrument(window_size=0.001)
    work.optimize()
    work.takes(32)
    assert [STEP] * 2 == logged_cycles(events)
    events.clear()
    train(work, 3)
    running.uninstrument()
    assert ([STEP] * 2 if again else []) == logged_cycles(events)


def test_memory_stays_constant(work: Work) -> None:
    """Over 4,000 batches with a backward, every second one with an optimizer in it."""
    losses = [work.forward, lambda: work.forward(backward=work.optimize)]
    blocks: list[int] = []
    with monitel.torch.instrument(sources="-compilation,-tensors", window_size=float("inf")):
        for batches in (10, 500, 4_000):
            for index in work.loader(batches):
                losses[index % 2]().backward()
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    assert blocks[2] - blocks[1] < 2000


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """A subclass, whose functions go through ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


BACKWARD = torch.autograd.backward  # as "from torch.autograd import backward" before instrument()


def run_engine(root: Any) -> None:
    """Run the engine as Megatron's pipelines do, which have freed the output."""
    engine = torch.autograd.Variable._execution_engine
    options = {"keep_graph": False, "create_graph": False, "inputs": (), "allow_unreachable": True}
    engine.run_backward(tensors=(root,), grad_tensors=(torch.ones(()),), accumulate_grad=True, **options)


ROOTS: dict[str, Callable[[Work], Any]] = {
    "leaf": lambda work: torch.autograd.backward([torch.ones((), requires_grad=True), work.forward()]),
    "several": lambda work: torch.autograd.backward([work.forward(seconds=1, backward=2) for _ in range(2)]),
    "iterator": lambda work: torch.autograd.backward(iter([work.forward(seconds=1, backward=2) for _ in range(2)])),
    "keyword": lambda work: torch.autograd.backward(tensors=(work.forward(),), grad_tensors=[torch.ones(())]),
    "edge": lambda work: torch.autograd.backward(
        torch.autograd.graph.get_gradient_edge(work.forward()), torch.ones(())
    ),
    "inputs": lambda work: work.forward().backward(inputs=[work.parameter]),
    "subclass": lambda work: work.forward().as_subclass(Wrapped).backward(),
    "subclasses": lambda work: torch.autograd.backward([work.forward().as_subclass(Wrapped)]),
    "function imported before": lambda work: BACKWARD(work.forward()),
    "engine": lambda work: run_engine(work.forward()),
}


@pytest.mark.parametrize("root", ROOTS)
def test_roots_of_all_kinds(root: str, work: Work, cycles: Run) -> None:
    """The gradients are those of torch alone, and no range stays open."""
    ROOTS[root](work)
    expected, work.parameter.grad = work.parameter.grad, None
    gradients = []

    def loop() -> None:
        for _ in work.loader(3):
            ROOTS[root](work)
            gradients.append(work.parameter.grad)
            work.parameter.grad = None
            work.optimize()
            work.takes(32)

    ended: list[str] = []
    with ranges.listen(ended=lambda each: ended.append(each.name)):
        found = cycles(loop)
        assert ranges.current_range() is None
    assert [STEP] * 2 == found
    assert [expected] * 3 == gradients
    assert 3 == ended.count("training.backward")


class _Delegating(distributed.Work):  # type: ignore[misc]
    """A Work of another library, with its wait()."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def wait(self, *arguments: Any) -> bool:
        return bool(self._inner.wait(*arguments))


def _waited_twice() -> None:
    work = distributed.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    work.wait()


def _stored(method: str) -> None:
    store = distributed.HashStore()
    store.set("key", "value")
    getattr(store, method)("key" if method == "get" else ["key"])


def _reduced() -> Any:
    return functional.all_reduce(torch.ones(2), "sum", distributed.group.WORLD)


#: By name: a call that waits for other ranks.
WAITS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: distributed.all_reduce(torch.ones(2)),
    "Work.wait twice": _waited_twice,
    "subclass of Work": lambda: _Delegating(distributed.all_reduce(torch.ones(2), async_op=True)).wait(),
    "Future.wait": lambda: distributed.all_reduce(torch.ones(2), async_op=True).get_future().wait(),
    "barrier": distributed.barrier,
    "monitored_barrier": lambda: distributed.monitored_barrier(None),
    "_broadcast_coalesced": lambda: distributed._broadcast_coalesced(distributed.group.WORLD, [torch.ones(2)], 1000, 0),
    "Store.wait": lambda: _stored("wait"),
    "Store.get": lambda: _stored("get"),
    "wait_tensor": lambda: functional.wait_tensor(_reduced()),
    "functional collective": lambda: _reduced() + 0,
    "compiled collective": torch.compile(lambda: _reduced() * 2, backend="aot_eager", fullgraph=True),
}


@pytest.mark.usefixtures("group", "fresh_compiler")
@pytest.mark.parametrize("name", WAITS)
def test_wait_for_other_ranks_is_sync(name: str, work: Work, cycles: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one, and only once; a wait of another thread is not. Here each takes a second."""
    waits: list[str] = []

    def delay(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wait(*args: Any, **kwargs: Any) -> Any:
            waits.append(name)
            work.takes(1)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wait)

    monkeypatch.setattr(distributed.ProcessGroup, "size", lambda _group: 2)
    packet = torch.ops._c10d_functional.wait_tensor
    places = [(distributed.Work, "wait"), (torch._C.Future, "wait"), (distributed.Store, "get")]
    places += [(distributed.Store, "wait"), (packet, "_op"), (packet.default, "_op")]
    for owner, method in [*places, (distributed, "_broadcast_coalesced"), (distributed, "monitored_barrier")]:
        delay(owner, method)

    def loop() -> None:
        for _ in work.loader(3):
            work.step()
            run_together(WAITS[name])
            waits.clear()
            WAITS[name]()

    WAITS[name]()  # compiled
    found = cycles(loop)
    assert waits
    assert [{**STEP, "other": 32 + len(waits), "sync": len(waits)}] * 2 == found


class Indexed:
    """Can be iterated by numbers only."""

    def __getitem__(self, index: int) -> int:
        return [0, 1, 2][index]


@pytest.fixture(params=[False, True], ids=["alone", "instrumented"])
def _observed(request: pytest.FixtureRequest) -> Iterator[None]:
    with monitel.torch.instrument() if request.param else nullcontext():
        torch.ones(1, requires_grad=True).sum().backward()  # the thread trains from here on
        yield


@pytest.mark.usefixtures("_observed")
@pytest.mark.parametrize("make", [list, lambda items: Indexed()])
def test_iterable_can_be_iterated_again(make: Callable[[Any], Any]) -> None:
    """Each ``for`` begins from the start, as without the function."""
    original = make([0, 1, 2])
    batches = monitel.torch.batches(original)
    assert not isinstance(batches, Iterator)
    assert [0, 1, 2] == list(batches) == list(batches)
    assert [(0, 0), (1, 1), (2, 2)] == list(zip(batches, batches, strict=True))


@pytest.mark.usefixtures("_observed")
def test_iterator_stays_an_iterator() -> None:
    """``next()`` returns a batch, and a second ``for`` goes on where the first one was broken off."""
    batches = monitel.torch.batches(each for each in [0, 1, 2, 3])
    assert isinstance(batches, Iterator)
    assert batches is iter(batches)
    assert 0 == next(batches)
    for batch in batches:
        assert 1 == batch
        break
    assert [2, 3] == list(batches)
    assert [] == list(batches)
    assert "end" == next(batches, "end")


@pytest.mark.parametrize("wrong", [None, type("Blocked", (), {"__iter__": None})(), lambda: [1]])
def test_object_that_is_not_iterable_is_refused(wrong: Any) -> None:
    """The error names the type, at once."""
    with pytest.raises(TypeError, match=rf"batches\(\) takes an iterable, got {type(wrong).__qualname__}: "):
        monitel.torch.batches(wrong)


def test_length_is_that_of_the_original() -> None:
    """Without one, the error is Python's. Truth is that of the original, too."""
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=2)
    assert (3, 2, 0) == tuple(len(monitel.torch.batches(each)) for each in ([1, 2, 3], loader, []))
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(monitel.torch.batches(iter([1])))
    assert monitel.torch.batches(iter([1]))
    assert not monitel.torch.batches([])
    assert isinstance(monitel.torch.batches([]), (Iterable, Sized))


@pytest.mark.usefixtures("_observed")
@pytest.mark.parametrize("error", [ValueError, StopIteration, KeyboardInterrupt])
def test_exceptions_are_passed_on(error: type[BaseException]) -> None:
    """The object itself, with its traceback."""
    raised = error("first")
    with pytest.raises(error) as caught:
        next(iter(monitel.torch.batches(map(Mock(side_effect=raised), [1]))))
    assert raised is caught.value


def rows(prof: Any) -> list[tuple[float, str, float, str | None]]:
    """Return start, name, end and name of the parent of each range, in seconds since the start of a profile."""
    return sorted(
        (each.time_range.start / 1e6, each.name, each.time_range.end / 1e6, each.cpu_parent and each.cpu_parent.name)
        for each in prof.events()
    )


def test_stages_batches_and_steps_are_ranges(work: Work, tmp_path: Path) -> None:
    """A step lasts from the end of an optimizer step to the end of the next one, and has a separate line.

    The first forward is not known. Parents and self times are consistent, though steps overlap iterations.
    """

    def own() -> None:
        with record_function("own"):
            work.takes(4)

    with monitel.torch.instrument(), profile() as prof:
        for _ in work.loader(2):
            with record_function("iteration"):
                work.forward(backward=own).backward()
                work.takes(1)
                work.optimize()
    assert [
        (0, "training.data", 1, None),
        (1, "iteration", 16, None),
        (3, "own", 7, "training.backward"),
        (3, "training.backward", 7, "iteration"),
        (8, "training.optimizer", 16, "iteration"),
        (16, "training.data", 17, None),
        (16, "training.step", 32, None),
        (17, "iteration", 32, None),
        (17, "training.forward", 19, "iteration"),
        (19, "own", 23, "training.backward"),
        (19, "training.backward", 23, "iteration"),
        (24, "training.optimizer", 32, "iteration"),
        (32, "training.data", 32, None),  # this call of next() ends the epoch
    ] == rows(prof)
    own_times = {each.key.removeprefix("training."): each.self_cpu_time_total / 1e6 for each in prof.key_averages()}
    assert {"iteration": 4, "data": 2, "forward": 2, "backward": 0, "own": 8, "optimizer": 16, "step": 0} == own_times
    assert {"MainThread": 12, "steps (MainThread)": 1} == {
        name: len(found) for name, found in lines(exported(prof, tmp_path)).items()
    }


def test_no_stage_overlaps_another_by_the_time_of_its_recording(tmp_path: Path) -> None:
    """All stages of a thread are on one line of a trace."""
    with monitel.torch.instrument(sources="stages"), profile() as prof:
        train(Work(float), 3)
    assert ["MainThread"] == list(lines(exported(prof, tmp_path)))


def test_exceptions_leave_no_range_open(work: Work) -> None:
    """A backward that raises ends with the exception. An optimizer that raises has no range."""

    def fail() -> None:
        work.takes(1)
        raise LookupError

    with monitel.torch.instrument(), profile() as prof, record_function("user"):
        with suppress(LookupError):
            work.forward(backward=fail).backward()
        with suppress(LookupError):
            work.optimize(fail)
        work.step()
    assert [
        (0, "user", 50, None),
        (2, "training.backward", 3, "user"),
        (3, "training.forward", 6, "user"),
        (6, "training.backward", 10, "user"),
        (10, "training.optimizer", 18, "user"),
    ] == rows(prof)


def test_trace_of_a_step_has_its_stages(receiver: Receiver, tmp_path: Path, work: Work) -> None:
    """With ``step_traces`` the span of the rank lasts as long as the step, and has the stages as children."""
    options: dict[str, Any] = {"endpoint": receiver.url, "spool_dir": tmp_path, "export_interval": 3600.0}
    with monitel_otlp.configure(**options, spans={"step_traces": True}), monitel.torch.instrument(sources="-waits"):
        train(work, 4)
    spans = receiver.spans()
    stages = {"training.data", "training.forward", "training.backward", "training.optimizer", "training.step"}
    for number in (1, 2):
        found = [each for each in spans if each.attributes.get("training.step") == number]
        (rank,) = [each for each in found if each.name == "training.rank"]
        assert 1 == len({each.trace_id for each in found})
        assert stages == {each.name for each in found if each.parent_id == rank.span_id}
        assert 47e9 == rank.end_ns - rank.start_ns
