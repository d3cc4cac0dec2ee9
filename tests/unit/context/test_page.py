"""The context page: step, waits in progress and heartbeat, as the file has them."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Thread, get_ident
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tests.core_conftest import RunScript, RunThreads

    Read = Callable[[], Any]


def keys(context: Any) -> list[str]:
    """Return the keys of waits in progress."""
    return [wait.key for wait in context.waits]


def test_step_has_its_time(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """The file has each step as soon as it is set, including one that goes back, and when it was set."""
    context_page.open_page(path)
    assert (None, None) == (read().step, read().step_ns)
    for step in (0, 1200, 7, 2**63 - 1):
        before_ns = time.monotonic_ns()
        monitel.set_step(step)
        after_ns = time.monotonic_ns()
        assert step == read().step == monitel.get_step()
        assert before_ns <= read().step_ns <= after_ns


def test_counted_step_is_in_the_page(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """A step that a source has counted is written as one of set_step() is."""
    context_page.open_page(path)
    monitel.step.advance(41)
    assert (41, 41) == (read().step, monitel.get_step())


def test_refused_step_changes_nothing(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """An error of set_step() leaves the page as it was."""
    context_page.open_page(path)
    monitel.set_step(3)
    for wrong in (-1, 2**63, "4", None):
        with pytest.raises((TypeError, ValueError)):
            monitel.set_step(wrong)
    assert (3, 3) == (read().step, monitel.get_step())


def test_step_from_before_the_opening_has_no_time(
    monitel: ModuleType, context_page: Any, path: Path, read: Read
) -> None:
    """The page does not guess when a step was set that it finds at its opening."""
    monitel.set_step(5)
    context_page.open_page(path)
    assert (5, None) == (read().step, read().step_ns)


def test_waits_are_in_the_page_while_they_last(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """Each wait in progress has its key, its thread and its start; the oldest is the first."""
    context_page.open_page(path)
    assert () == read().waits
    before_ns = time.monotonic_ns()
    with monitel.WaitCounter("outer").guard():
        between_ns = time.monotonic_ns()
        with monitel.WaitCounter("inner").guard(), monitel.WaitCounter("outer").guard():
            after_ns = time.monotonic_ns()
            outer, inner, again = read().waits
            assert ["outer", "inner", "outer"] == [outer.key, inner.key, again.key]
            assert before_ns <= outer.start_ns <= between_ns <= inner.start_ns <= again.start_ns <= after_ns
            assert {get_ident()} == {outer.thread, inner.thread, again.thread}
        assert (outer,) == read().waits
    assert () == read().waits


def test_waits_of_other_threads(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """A wait has the thread that began it."""
    context_page.open_page(path)
    together, threads = Barrier(4), []

    def wait() -> None:
        with monitel.WaitCounter("queue").guard():
            together.wait(30)
            together.wait(30)

    for _ in range(3):
        threads.append(Thread(target=wait))
        threads[-1].start()
    together.wait(30)
    found = [wait.thread for wait in read().waits]
    together.wait(30)
    for thread in threads:
        thread.join()
    assert sorted(thread.ident for thread in threads if thread.ident is not None) == sorted(found)
    assert () == read().waits


def test_entering_again_starts_another_wait(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """A guard that is entered twice has one wait, the second; leaving it twice does no harm."""
    context_page.open_page(path)
    guard = monitel.WaitCounter("twice").guard()
    guard.__enter__()
    (first,) = read().waits
    guard.__enter__()
    (second,) = read().waits
    assert first.start_ns < second.start_ns
    guard.__exit__(None, None, None)
    guard.__exit__(None, None, None)
    assert () == read().waits
    assert 0 == read().waits_left_out


def test_garbage_collected_wait_leaves_the_page(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """A wait whose guard is gone is over."""
    context_page.open_page(path)
    guard = monitel.WaitCounter("lost").guard()
    guard.__enter__()
    assert ["lost"] == keys(read())
    del guard
    assert [] == keys(read())


def test_wait_in_progress_at_the_opening_is_included(
    monitel: ModuleType, context_page: Any, path: Path, read: Read
) -> None:
    """Its start is the real one; it leaves the page at its end."""
    before_ns = time.monotonic_ns()
    with monitel.WaitCounter("early").guard():
        after_ns = time.monotonic_ns()
        context_page.open_page(path)
        (wait,) = read().waits
        assert "early" == wait.key
        assert before_ns <= wait.start_ns <= after_ns
    assert () == read().waits
    assert 1 == monitel.wait_counters()["early"].count


def test_wait_may_end_after_the_page_is_closed(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """The file keeps what it had."""
    context_page.open_page(path)
    with monitel.WaitCounter("long").guard():
        context_page.close_page()
    assert ["long"] == keys(read())
    assert 1 == monitel.wait_counters()["long"].count


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("", ""),
        ("x" * 47, "x" * 47),
        ("x" * 48, "x" * 47),
        ("x" * 46 + "é", "x" * 46),
        ("x" * 45 + "é" + "x", "x" * 45 + "é"),
        ("x" * 44 + "\N{HUNDRED POINTS SYMBOL}", "x" * 44),
        ("x" * 43 + "\N{HUNDRED POINTS SYMBOL}" * 9, "x" * 43 + "\N{HUNDRED POINTS SYMBOL}"),
        ("a\0b", "a\0b"),
    ],
)
def test_key_is_cut_off_between_characters(
    monitel: ModuleType, context_page: Any, path: Path, key: str, shown: str
) -> None:
    """A key has at most 47 bytes of UTF-8, without half a character."""
    context_page.open_page(path)
    with monitel.WaitCounter(key).guard():
        assert [shown] == keys(context_page.read_page(path.read_bytes()))


def test_waits_without_a_slot_are_counted(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """48 waits have a slot. A further one gets a free slot at the next beat, with its own start."""
    context_page.open_page(path)
    guards = [monitel.WaitCounter(f"wait {number}").guard() for number in range(51)]
    for guard in guards:
        guard.__enter__()
    start_ns = time.monotonic_ns()
    assert ([f"wait {number}" for number in range(48)], 3) == (keys(read()), read().waits_left_out)
    for _ in range(2):  # the second has no effect
        guards[50].__exit__(None, None, None)
    assert (48, 2) == (len(read().waits), read().waits_left_out)
    context_page.beat()
    assert (48, 2) == (len(read().waits), read().waits_left_out)
    guards[3].__exit__(None, None, None)
    assert (47, 2) == (len(read().waits), read().waits_left_out)
    context_page.beat()
    assert (48, 1) == (len(read().waits), read().waits_left_out)
    assert "wait 48" == read().waits[-1].key
    assert read().waits[-1].start_ns <= start_ns
    for guard in guards:
        guard.__exit__(None, None, None)
    assert ((), 0) == (read().waits, read().waits_left_out)


def test_beat_is_the_time_by_both_clocks(context_page: Any, path: Path, read: Read) -> None:
    """The opening is a beat. Monotonic times can be converted to Unix times."""
    for beat in (lambda: context_page.open_page(path), context_page.beat, context_page.beat):
        before = time.monotonic_ns(), time.time_ns()
        beat()
        after = time.monotonic_ns(), time.time_ns()
        context = read()
        assert before[0] <= context.heartbeat_ns <= after[0]
        assert before[1] <= context.heartbeat_unix_ns <= after[1]
        assert context.heartbeat_unix_ns + 5_000_000_000 == context.unix_ns(context.heartbeat_ns + 5_000_000_000)


def test_closed_page_keeps_its_content(monitel: ModuleType, context_page: Any, path: Path) -> None:
    """Nothing writes to the file any more. Closing is idempotent."""
    context_page.open_page(path)
    monitel.set_step(1)
    content = path.read_bytes()
    context_page.close_page(path.with_name("another"))
    monitel.set_step(2)
    assert content != path.read_bytes()
    content = path.read_bytes()
    for closing in (path, str(path), None):
        context_page.close_page(closing)
        monitel.set_step(3)
        context_page.beat()
        with monitel.WaitCounter("later").guard():
            assert content == path.read_bytes()
    assert 3 == monitel.get_step()


def test_second_page_replaces_the_first(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """The first file keeps its content; the second one has the step and the waits in progress."""
    context_page.open_page(path)
    monitel.set_step(1)
    second = path.with_name("second")
    with monitel.WaitCounter("between").guard():
        context_page.open_page(second)
        monitel.set_step(2)
        assert (1, ["between"]) == (read().step, keys(read()))
        found = context_page.read_page(second.read_bytes())
        assert (2, ["between"]) == (found.step, keys(found))
        context_page.close_page(path)  # not the page that is open
        monitel.set_step(3)
    assert 3 == context_page.read_page(second.read_bytes()).step


def test_removed_file_does_no_harm(monitel: ModuleType, context_page: Any, path: Path) -> None:
    """Somebody removes the file; the job goes on."""
    context_page.open_page(path)
    path.unlink()
    monitel.set_step(1)
    context_page.beat()
    assert 1 == monitel.get_step()
    assert not path.exists()


def test_file_is_private_whatever_the_umask_is(context_page: Any, path: Path) -> None:
    """The mode is 0600, and the size is one page."""
    for umask in (0o777, 0o000):
        previous = os.umask(umask)
        try:
            context_page.open_page(path)
        finally:
            os.umask(previous)
        status = path.stat()
        assert (0o600, context_page.PAGE_BYTES) == (status.st_mode & 0o7777, status.st_size)
        path.unlink()


def test_existing_files_are_not_touched(monitel: ModuleType, context_page: Any, path: Path) -> None:
    """A file, a link, or a link to nothing is refused. A page that is open stays open."""
    context_page.open_page(path)
    other = path.with_name("other")
    other.write_text("precious")
    link, dangling = path.with_name("link"), path.with_name("dangling")
    link.symlink_to(other)
    dangling.symlink_to(path.with_name("nothing"))
    for existing in (other, link, dangling, path):
        with pytest.raises(FileExistsError):
            context_page.open_page(existing)
    with pytest.raises(FileNotFoundError):
        context_page.open_page(path.with_name("missing") / "context")
    assert "precious" == other.read_text()
    assert {"context", "dangling", "link", "other"} == {each.name for each in path.parent.iterdir()}
    monitel.set_step(8)
    assert 8 == context_page.read_page(path.read_bytes()).step


def test_page_in_an_open_folder(context_page: Any, path: Path, read: Read) -> None:
    """The path may be relative to a descriptor."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        context_page.open_page(path.name, dir_fd=folder)
        assert read().heartbeat_ns is not None
    finally:
        os.close(folder)


def test_no_descriptor_stays_open(monitel: ModuleType, context_page: Any, path: Path, twin: str) -> None:
    """A kept descriptor could be closed and reused by the program. Python before 3.13 maps no file without one."""
    for mapped in [True, False] if twin == "c" else [False]:
        before = sorted(Path("/proc/self/fd").iterdir())
        context_page.open_page(path, mapped=mapped)
        assert before == sorted(Path("/proc/self/fd").iterdir())
        path.unlink()


def test_without_space_there_is_no_page(run_script: RunScript) -> None:
    """A file that cannot be allocated is an error and not a SIGBUS later; nothing stays behind."""
    ended = run_script(
        """
import resource, signal
from monitel import context_page
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 1, 8191):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for mapped in (True, False):
        try:
            context_page.open_page("context", mapped=mapped)
        except OSError as error:
            say(type(error).__name__, os.path.exists("context"))
        monitel.set_step(limit)
        context_page.beat()
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
context_page.open_page("context")
say(context_page.read_page(open("context", "rb").read()).step)
"""
    )
    assert [*["OSError False"] * 6, "8191"] == ended.lines


def test_page_that_is_not_mapped_is_written_by_the_beat(
    monitel: ModuleType, context_page: Any, path: Path, read: Read
) -> None:
    """Between two beats the file does not change."""
    monitel.set_step(1)
    with monitel.WaitCounter("early").guard():
        context_page.open_page(path, mapped=False)
        assert (1, None, ["early"]) == (read().step, read().step_ns, keys(read()))
        monitel.set_step(2)
        content = path.read_bytes()
    assert content == path.read_bytes()
    context_page.beat()
    assert (2, []) == (read().step, keys(read()))
    assert read().step_ns is not None
    assert 8192 == path.stat().st_size


def test_only_the_file_of_the_page_is_written(context_page: Any, path: Path) -> None:
    """A page that is not mapped leaves alone what has replaced its file. A missing file is an error of the beat."""
    context_page.open_page(path, mapped=False)
    original = path.rename(path.with_name("renamed"))
    content = original.read_bytes()
    with pytest.raises(FileNotFoundError):
        context_page.beat()
    path.write_text("precious")
    context_page.beat()
    assert ("precious", content) == (path.read_text(), original.read_bytes())
    path.unlink()
    path.symlink_to(original)
    with pytest.raises(OSError, match="symbolic"):
        context_page.beat()
    assert content == original.read_bytes()


def test_wait_has_the_time_of_the_system(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """Another process cannot read the clock of a test, or of a simulated job."""
    context_page.open_page(path)
    with monitel.testing.ManualClock() as clock:
        clock.advance(1e6)
        before_ns = time.monotonic_ns()
        with monitel.WaitCounter("loading").guard():
            (wait,) = read().waits
    assert before_ns <= wait.start_ns <= time.monotonic_ns()


def test_clock_of_a_test_may_have_any_value(monitel: ModuleType, context_page: Any, path: Path, read: Read) -> None:
    """A start beyond 64 bits raises nothing into the program."""
    context_page.open_page(path)
    for start_ns in (2**63, 2**100, -1):
        with monitel.testing.ManualClock() as clock:
            clock.advance(start_ns / 1e9) if start_ns > 0 else None
            with monitel.WaitCounter("ahead").guard():
                assert ["ahead"] == keys(read())
        assert [] == keys(read())


@pytest.mark.parametrize("threads", [3, 60])
def test_threads_leave_no_wait_behind(
    context_page: Any, path: Path, read: Read, run_threads: RunThreads, threads: int
) -> None:
    """Waits of many threads, of which some have no slot, while another thread beats and reads."""
    monitel = sys.modules["monitel"]  # the twin under test
    context_page.open_page(path)

    def work() -> None:
        for number in range(6000 // threads):
            with ExitStack() as stack:
                for _ in range(number % 3):
                    stack.enter_context(monitel.WaitCounter(f"of {get_ident()}").guard())
                monitel.set_step(number)

    def look() -> None:
        for _ in range(50):
            context_page.beat()
            found = read()
            assert [f"of {wait.thread}" for wait in found.waits] == keys(found)
            assert len(found.waits) <= 48

    run_threads(look, *[work] * threads)
    context_page.beat()
    assert ((), 0) == (read().waits, read().waits_left_out)
    assert monitel.get_step() == read().step


def test_exceptions_of_signal_handlers_leave_no_wait_behind(run_script: RunScript) -> None:
    """An exception that a handler raises anywhere within a guard ends the wait in the page too."""
    ended = run_script(
        """
import signal
from monitel import context_page
context_page.open_page("context")
counter = monitel.WaitCounter("interrupted")

class Alarm(Exception):
    pass

def on_alarm(*_):
    raise Alarm

signal.signal(signal.SIGALRM, on_alarm)
interrupted = 0
while interrupted < 600:
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + interrupted % 100 * 1e-6)
        for _ in range(400):
            with counter.guard():
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        continue
    except Alarm:
        interrupted += 1
    with open("context", "rb") as file:
        found = context_page.read_page(file.read())
    assert (found.waits, found.waits_left_out) == ((), 0), (interrupted, found)
say(monitel.wait_counters()["interrupted"].active)
"""
    )
    # CPython 3.10 runs signal handlers between more instructions than later versions, and after a wait was taken out.
    assert ended.lines in ([["0"]] if sys.version_info >= (3, 11) else [["0"], ["1"]])
