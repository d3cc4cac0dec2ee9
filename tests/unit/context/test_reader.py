"""The reader of the context page, for pages that are damaged, half written, or being written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel.context_page import PAGE_BYTES, Context, read_page, read_step_times

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from tests.core_conftest import RunScript

    Change = Callable[["Page"], Any]

MAGIC = int.from_bytes(b"mntlctx1", "big")
USED = 448 + 4 * 72  # bytes that a page with at most four waits has


class Page:
    """An open page, with two steps behind it and two waits in progress."""

    def __init__(self, monitel: ModuleType, context_page: Any, path: Path) -> None:
        self.monitel = monitel
        self.context_page = context_page
        self.path = path
        context_page.open_page(path)
        monitel.set_step(4)
        monitel.set_step(5)
        self.guards: list[Any] = []
        self.enter("first")
        self.enter("second")

    def enter(self, key: str) -> None:
        """Begin a wait."""
        self.guards.append(self.monitel.WaitCounter(key).guard())
        self.guards[-1].__enter__()

    def leave(self, index: int) -> None:
        """End a wait."""
        self.guards.pop(index).__exit__(None, None, None)

    def reuse(self) -> None:
        """End a wait, and begin another one in its slot."""
        self.leave(0)
        self.enter("a longer key in the same slot")

    @property
    def content(self) -> bytes:
        """The bytes of the file."""
        return self.path.read_bytes()


@pytest.fixture
def page(monitel: ModuleType, context_page: Any, path: Path) -> Page:
    """Return an open page."""
    return Page(monitel, context_page, path)


@given(st.binary(max_size=2 * PAGE_BYTES))
def test_bytes_that_are_not_a_page_have_no_context(content: bytes) -> None:
    """Any bytes of any size."""
    assert Context() == read_page(content)
    assert b"" == read_step_times(content)


@given(st.binary(min_size=1, max_size=200), st.sampled_from(["little", "big"]))
def test_page_of_random_bytes_has_no_context(some: bytes, order: Any) -> None:
    """A page whose content is not valid has neither step nor waits, in both byte orders of the magic number."""
    content = MAGIC.to_bytes(8, order) + (some * PAGE_BYTES)[: PAGE_BYTES - 8]
    assert Context() == read_page(content)
    assert Context() == read_page(content[:-1])


def test_empty_page_has_no_context() -> None:
    """A process was killed before it wrote anything, or between the magic number and the rest."""
    assert Context() == read_page(bytes(PAGE_BYTES))
    assert Context() == read_page(MAGIC.to_bytes(8, "little") + bytes(PAGE_BYTES - 8))
    assert Context() == read_page(MAGIC.to_bytes(8, "big") + bytes(PAGE_BYTES - 8))


def test_any_buffer_can_be_read(page: Page) -> None:
    """A bytearray and a memoryview have the same context as the bytes, and so have longer files."""
    content = page.content
    expected = read_page(content)
    assert (5, ["first", "second"]) == (expected.step, [wait.key for wait in expected.waits])
    for other in (bytearray(content), memoryview(content), content + b"more"):
        assert expected == read_page(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", [0x01, 0x80, 0xFF])
def test_damaged_values_are_left_out(page: Page, damage: int) -> None:
    """With any byte changed, the rest is as it was, and what the byte belongs to is the previous value or missing."""
    content = page.content
    expected = read_page(content)
    for at in range(USED):
        damaged = bytearray(content)
        damaged[at] ^= damage
        found = read_page(bytes(damaged))
        if at < 8:
            assert Context() == found
            continue
        assert found.step in {expected.step, 4}, at
        assert set(found.waits) <= set(expected.waits), at
        differences = [name for name in Context.__slots__ if getattr(found, name) != getattr(expected, name)]
        assert len(differences) <= 2, (at, differences)  # a copy has two numbers
        slot = (at - 448) // 72
        assert len(expected.waits) - (0 <= slot < 2) == len(found.waits), at


CHANGES: dict[str, Change] = {
    "step": lambda page: page.monitel.set_step(6),
    "beat": lambda page: page.context_page.beat(),
    "enter": lambda page: page.enter("third"),
    "leave": lambda page: page.leave(0),
    "reuse": lambda page: page.reuse(),
    "all": lambda page: [change(page) for name, change in CHANGES.items() if name != "all"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_half_of_a_change_is_never_taken_for_a_value(page: Page, name: str) -> None:
    """A page of which the first or the last bytes are later than the others, as a reader may find it."""
    before = page.content
    CHANGES[name](page)
    after = page.content
    assert before != after
    old, new = read_page(before), read_page(after)
    for at in range(USED):
        for content in (before[:at] + after[at:], after[:at] + before[at:]):
            found = read_page(content)
            for names in (("step", "step_ns"), ("heartbeat_ns", "heartbeat_unix_ns")):
                pair = [getattr(found, each) for each in names]
                assert pair in [[getattr(each, name) for name in names] for each in (old, new)], at
            assert set(old.waits) & set(new.waits) <= set(found.waits) <= set(old.waits) | set(new.waits), at
            assert found.waits_left_out in {old.waits_left_out, new.waits_left_out}


def test_reader_beside_a_writer(run_script: RunScript) -> None:
    """While a process writes without a pause, each read has a step, which never falls, and whole waits."""
    ended = run_script(
        """
import signal
from monitel import context_page

begun, began = os.pipe()
child = os.fork()
if child == 0:
    context_page.open_page("context")

    def wait():
        counter = monitel.WaitCounter(f"of {threading.get_ident()}")
        while True:
            with counter.guard():
                pass

    for _ in range(3):
        threading.Thread(target=wait, daemon=True).start()
    monitel.set_step(0)
    os.write(began, b".")
    while True:
        monitel.set_step(monitel.get_step() + 1)
os.read(begun, 1)
steps, beats, waits = [], set(), 0
while len(steps) < 3000 or steps[-1] - steps[0] < 100 or waits < 100:
    with open("context", "rb") as file:
        found = context_page.read_page(file.read())
    steps.append(found.step)
    beats.add(found.heartbeat_ns)
    waits += len(found.waits)
    for each in found.waits:
        assert each.key == f"of {each.thread}", each
    assert len(found.waits) <= 3
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
assert None not in steps, steps.count(None)
assert sorted(steps) == steps
assert len(beats) == 1
say("done")
"""
    )
    assert ["done"] == ended.lines


def test_kill_at_any_instruction(run_script: RunScript) -> None:
    """After SIGKILL the file has each step whose set_step() has returned, and each wait that had begun."""
    ended = run_script(
        """
import mmap, random, signal, struct, time
from monitel import context_page

known = mmap.mmap(-1, 4096)  # shared: the last step that was set, and the wait in progress

def work(path):
    context_page.open_page(path)
    step = 0
    while True:
        step += 1
        monitel.set_step(step)
        known[:8] = struct.pack("=q", step)
        with monitel.WaitCounter(f"wait {step % 50}").guard():
            known[8:16] = known[:8]
            known[8:16] = bytes(8)

random.seed(1)
waiting = 0
for kill in range(120):
    known[:16] = bytes(16)
    path = f"context-{kill}"
    child = os.fork()
    if child == 0:
        work(path)
    while struct.unpack_from("=q", known, 0)[0] < 3:
        time.sleep(0.0001)
    time.sleep(random.random() * 0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    step, wait = struct.unpack_from("=qq", known)
    with open(path, "rb") as file:
        found = context_page.read_page(file.read())
    assert found.step in (step, step + 1), (kill, step, found)
    keys = [each.key for each in found.waits]
    assert keys in ([f"wait {step % 50}"], [] if wait == 0 else None), (kill, step, wait, keys)
    waiting += len(keys)
    assert found.step_ns > found.heartbeat_ns - 20_000_000
say(waiting > 0)
"""
    )
    assert ["True"] == ended.lines
