"""Name resolution: callers wait at most until their deadline, and a look-up that hangs does not block others."""

from __future__ import annotations

import socket
import threading
import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import in_time

from monitel_otlp.transport.resolver import Resolver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.scripts import Run

pytestmark = pytest.mark.timed

TIMEOUT = 0.3


def found(*hosts: str) -> Any:
    """Return the addresses of hosts as getaddrinfo returns them."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 80)) for host in hosts]


class NameServer:
    """A replacement of ``getaddrinfo`` in which names that begin with ``hang`` wait until the event is set."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.release = Event()
        self.asked: list[str] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, host: str, _port: int, **_options: Any) -> Any:
        """Answer as getaddrinfo does."""
        self.asked.append(host)
        self.threads.add(threading.current_thread())
        if host.startswith("hang"):
            self.release.wait(30)
        answer = self.answers.get(host, found("192.0.2.1"))
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def server() -> Iterator[NameServer]:
    """A name server whose look-ups return at the end of the test."""
    server = NameServer()
    yield server
    server.release.set()


def look(own: Resolver, host: str, timeout: float = TIMEOUT) -> list[str]:
    """Look up a host, and return its addresses."""
    return [address[0] for *_, address in own.lookup(host, 80, time.monotonic() + timeout)]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "192.0.2.7"])
def test_ip_address_is_not_resolved(server: NameServer, host: str) -> None:
    """An IP address needs neither a look-up nor a thread."""
    own = Resolver(server)
    assert [host] == look(own, host)
    assert [] == server.asked


def test_names_are_resolved_by_one_thread(server: NameServer) -> None:
    """The thread is a daemon, because it may hang when the process ends."""
    own = Resolver(server)
    assert [["192.0.2.1"]] * 3 == [look(own, host) for host in ("a", "b", "a")]
    (thread,) = server.threads
    assert thread.daemon
    assert thread is not threading.current_thread()


def test_lookup_that_hangs_raises_at_the_deadline(server: NameServer) -> None:
    """Several callers of one name share one look-up."""
    own = Resolver(server)
    for _ in range(3):
        with in_time(TIMEOUT + 0.5), pytest.raises(TimeoutError):
            look(own, "hang")
    assert ["hang"] == server.asked


def test_error_of_the_name_server_is_raised(server: NameServer) -> None:
    """The caller receives the exception of getaddrinfo."""
    server.answers["a"] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    server.answers["b"] = UnicodeError("label empty or too long")
    for host, error in (("a", socket.gaierror), ("b", UnicodeError)):
        with pytest.raises(error):
            look(Resolver(server), host)


def test_lookup_that_hangs_does_not_block_others_for_long(server: NameServer) -> None:
    """The thread is replaced after a second, at most three times."""
    own = Resolver(server)
    for number in range(3):
        with pytest.raises(TimeoutError):
            look(own, f"hang-{number}", 1.2)
        with in_time(1.5):
            assert ["192.0.2.1"] == look(own, f"other-{number}", 5.0)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            look(own, "hang-3", TIMEOUT)
        with in_time(2.5), pytest.raises(TimeoutError):
            look(own, "another", 1.5)
    assert 4 == len(server.threads)
    server.release.set()
    assert ["192.0.2.1"] == look(own, "another", 10.0)


@pytest.mark.parametrize("error", [None, socket.gaierror(socket.EAI_AGAIN, "again"), OSError()], ids=str)
def test_last_answer_is_used_if_there_is_no_fresh_one(server: NameServer, error: Exception | None) -> None:
    """If the name server hangs or fails, three quarters of the time are left for the connection."""
    own = Resolver(server)
    server.release.set()
    assert ["192.0.2.1"] == look(own, "hang")
    if error is None:
        server.release.clear()
    else:
        server.answers["hang"] = error
    with in_time(1.0):
        assert ["192.0.2.1"] == look(own, "hang", 2.0)


def test_last_answer_is_refreshed(server: NameServer) -> None:
    """A fresh answer is kept even if its caller no longer waits."""
    own = Resolver(server)
    server.release.set()
    look(own, "hang")
    server.release.clear()
    server.answers["hang"] = found("192.0.2.2")
    assert ["192.0.2.1"] == look(own, "hang")
    server.release.set()
    assert ["192.0.2.2"] == look(own, "hang", 10.0)


def test_removed_name_raises(server: NameServer) -> None:
    """The last address is not used, because it may belong to another host now."""
    own = Resolver(server)
    look(own, "a")
    server.answers["a"] = socket.gaierror(socket.EAI_NONAME, "gone")
    with pytest.raises(socket.gaierror):
        look(own, "a")


def refuse(_thread: Thread) -> None:
    """Raise, as CPython does when a thread is started at exit."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_caller_resolves_if_no_thread_can_be_started(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit CPython starts no thread."""
    monkeypatch.setattr(Thread, "start", refuse)
    own = Resolver(server)
    assert not own.start()
    assert ["192.0.2.1"] == look(own, "a")
    assert {threading.current_thread()} == server.threads


def test_forked_child_has_a_resolver(run: Run) -> None:
    """The parent's thread does not exist in the child."""
    run(
        "-c",
        "import os, time\n"
        "from monitel_otlp.transport import resolver\n"
        "assert resolver.lookup('localhost', 80, time.monotonic() + 10)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if resolver.lookup('localhost', 80, time.monotonic() + 10) else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n",
    )


def test_transport_to_a_name_can_resolve_it_at_exit(run: Run) -> None:
    """The resolver's thread is started when the transport is created, because no thread can be started at exit."""
    run(
        "-c",
        "import atexit, threading, time\n"
        "from monitel_otlp.config.settings import resolve\n"
        "from monitel_otlp.transport import resolver\n"
        "from monitel_otlp.transport.factory import make_transports\n"
        "make_transports(resolve('http://localhost:4318'))\n"
        "assert any(each.name == 'monitel-resolver' for each in threading.enumerate())\n"
        "atexit.register(lambda: resolver.lookup('localhost', 80, time.monotonic() + 10) or os._exit(3))\n",
    )
