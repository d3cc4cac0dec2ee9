"""How windows of all ranks come together over sockets, and what becomes of them where they cannot."""

from __future__ import annotations

import json
import logging
import pickle
import random
import socket
import stat
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel_otlp import letters, link, place
from monitel_otlp.cells import Row
from monitel_otlp.digest import Digest, Share
from monitel_otlp.gathering import Gathering
from monitel_otlp.place import Place, find_place
from monitel_otlp.ranks import VARIABLES

from .inbox import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECOND = 10**9
BEGIN = 1_767_225_600 * SECOND
DEFINITION = monitel.StatDefinition("loss", (monitel.MEAN,), "", "", MappingProxyType({"split": "train"}), False)


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds, with a deadline."""
    deadline, pause = time.monotonic() + DEADLINE, Event()
    while not holds():
        assert time.monotonic() < deadline, what
        pause.wait(0.01)


def window(number: int, value: float = 1.0) -> monitel.Window:
    """The n-th window of a tenth of a second, with one sample."""
    end_ns = BEGIN + number * SECOND // 10
    return monitel.Window(DEFINITION, end_ns - SECOND // 10, end_ns, 1, value, value, value, value, 0, None, None)


@dataclass
class Rank:
    """A rank without a pipeline: windows go in, digests come out."""

    place: Place
    found: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gathering = Gathering(self.place, 0.02, "step.time", self.found.append, lambda: None)

    def record(self, *windows: monitel.Window) -> None:
        """Close windows."""
        for each in windows:
            self.gathering.put(each)

    def exchange(self, *, last: bool = False) -> list[Digest]:
        """A round of its delivery thread; the digests so far."""
        self.gathering.exchange(last=last)
        return self.found


@dataclass
class Job:
    """Ranks on nodes of two, in one process."""

    folder: Path
    size: int
    port: int
    ranks: dict[int, Rank] = field(default_factory=dict)
    strangers: list[Any] = field(default_factory=list)  # to be closed

    def place(self, rank: int) -> Place:
        """A rank's place: rank 0 on a port and, as all even ones, on a socket of its node."""
        nodes = (("127.0.0.1", self.port),)
        own = (str(self.folder / "sockets" / str(rank // 2)),)
        above: tuple[Any, ...] = () if rank == 0 else own if rank % 2 else nodes
        listens: tuple[Any, ...] = (own, nodes) if rank == 0 else () if rank % 2 else (own,)
        return Place("run-7", rank, self.size, f"node-{rank // 2}", above, listens)

    def start(self, *ranks: int) -> list[Rank]:
        """Start ranks."""
        for rank in ranks:
            self.ranks[rank] = Rank(self.place(rank))
        return [self.ranks[rank] for rank in ranks]

    def until(self, holds: Callable[[], object], what: str = "no digest") -> None:
        """Let all ranks work, those below first, until something holds."""

        def work() -> object:
            for rank in sorted(self.ranks, key=lambda rank: (-(rank % 2), -rank)):
                self.ranks[rank].exchange()
            return holds()

        eventually(work, what)

    def kill(self, rank: int) -> None:
        """As SIGKILL: the kernel closes what it had open."""
        gathering = self.ranks.pop(rank).gathering
        gathering._listener._closing = True
        if gathering._listener._sockets:
            gathering._listener._thread.join(DEADLINE)
        gathering.abandon()


@pytest.fixture
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Four ranks that can be started."""
    port = random.randrange(10_000, 30_000)  # below those that clients are given
    job = Job(tmp_path_factory.mktemp("job"), 4, port)
    yield job
    for rank in list(job.ranks):
        job.kill(rank)
    for each in job.strangers:
        each.close()


def test_all_ranks_come_together(job: Job) -> None:
    """By way of their node's first one; a cell is complete when all are there."""
    for number, rank in enumerate(job.start(0, 1, 2, 3)):
        rank.record(window(1, float(number)))
    zero = job.ranks[0]
    job.until(lambda: zero.found)
    (digest,) = zero.found
    assert (4, 4, 6.0, 0.0, 3.0) == (digest.ranks, digest.count, digest.sum, digest.lowest, digest.highest)
    assert DEFINITION == digest.definition
    assert [] == [each for rank in (1, 2, 3) for each in job.ranks[rank].found]
    assert {0: "node-0", 1: "node-0", 2: "node-1", 3: "node-1"} == zero.gathering._listener.hosts
    job.until(lambda: not any(len(rank.gathering) for rank in job.ranks.values()), "something is still kept")


def test_a_dead_rank_does_not_hold_up_the_others(job: Job) -> None:
    """Its connection ends, and nobody waits for it."""
    job.start(0, 1, 2, 3)
    zero = job.ranks[0]
    job.until(lambda: zero.gathering._listener.ranks == {1, 2, 3}, "not all are there")
    job.kill(3)
    for rank in job.ranks.values():
        rank.record(window(1))
    job.until(lambda: zero.found)
    assert [3] == [digest.ranks for digest in zero.found]


def test_a_silent_rank_does_not_hold_up_the_others(job: Job) -> None:
    """It is there and says nothing: the others' cell is over after a second, the next one at once."""
    job.start(0, 1, 2, 3)
    zero = job.ranks[0]
    for number in (1, 2):
        begin = time.monotonic()
        for rank in (0, 1, 2):
            job.ranks[rank].record(window(number))
        job.until(lambda: len(zero.found) == number)  # noqa: B023  called here
        assert (number == 1) == (time.monotonic() - begin > 1.0)
    assert [3, 3] == [digest.ranks for digest in zero.found]


def test_rank_zero_may_start_late(job: Job) -> None:
    """What the others have closed by then is not lost, nor exported by themselves."""
    for rank in job.start(1, 2, 3):
        rank.record(window(1))
        rank.exchange()
        rank.exchange()
    (zero,) = job.start(0)
    zero.record(window(1))
    job.until(lambda: sum(digest.count for digest in zero.found) == 4)
    assert [] == [each for rank in (1, 2, 3) for each in job.ranks[rank].found]


def test_without_rank_zero_a_node_exports_its_own_digest(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost; it is said once, and when rank zero is back it gets the windows again."""
    job.start(0, 2, 3)
    job.until(lambda: job.ranks[0].gathering._listener.ranks == {2, 3}, "not all are there")
    job.kill(0)
    for number in range(1, 4):
        for rank in (2, 3):
            job.ranks[rank].record(window(number, float(rank)))
    leader = job.ranks[2]
    with caplog.at_level(logging.WARNING):
        job.until(lambda: sum(digest.count for digest in leader.found) == 6)
    assert {(2, 2.0, 3.0)} == {(digest.ranks, digest.lowest, digest.highest) for digest in leader.found}
    assert [] == job.ranks[3].found
    said = [record.getMessage() for record in caplog.records if "cannot hand its windows over" in record.getMessage()]
    assert 1 == len(said)
    assert "rank 2" in said[0]
    (zero,) = job.start(0)
    for rank in (2, 3):
        job.ranks[rank].record(window(9))
    job.until(lambda: sum(digest.count for digest in zero.found) == 2)
    assert 6 == sum(digest.count for digest in leader.found)


def test_a_rank_that_hears_no_answer_exports_its_own(job: Job) -> None:
    """Its connection stands, as to a process that is stopped: after a second it has its windows back."""
    with ExitStack() as stack:
        mute = stack.enter_context(socket.create_server(("127.0.0.1", job.port)))
        (leader,) = job.start(2)
        leader.record(window(1))
        heard: list[socket.socket] = []

        def greet_only() -> bool:
            mute.setblocking(False)
            with suppress(BlockingIOError):
                heard.append(stack.enter_context(mute.accept()[0]))
                heard[-1].sendall(letters.greet(job.place(0)))
            leader.exchange()
            return bool(leader.found)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(link, "_ATTEMPT", 0.05)
            patched.setattr(link, "_LATE_START", 1.0)
            eventually(greet_only, "its windows are kept")
    assert [1] == [digest.ranks for digest in leader.found]


def test_the_last_round_waits_for_the_others(job: Job) -> None:
    """All end at once, as torchrun has them: what they have is handed over within the bound."""
    job.start(0, 1, 2, 3)
    zero = job.ranks[0]
    job.until(lambda: zero.gathering._listener.ranks == {1, 2, 3}, "not all are there")
    def end(rank: Rank) -> None:
        rank.record(window(1))
        rank.gathering.end_within(DEADLINE)
        rank.exchange(last=True)

    threads = [Thread(target=end, args=[rank]) for rank in job.ranks.values()]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert time.monotonic() - begin < 0.4 * DEADLINE
    assert [4] == [digest.ranks for digest in zero.found]
    assert not any((job.folder / "sockets").iterdir())


def test_the_last_round_does_not_wait_for_ever(job: Job) -> None:
    """A rank that goes on is waited for 0.4 of the time; the rest is for delivery."""
    job.start(0, 1)
    zero, one = job.ranks[0], job.ranks[1]
    job.until(lambda: zero.gathering._listener.ranks == {1}, "it is not there")
    zero.record(window(1))
    begin = time.monotonic()
    zero.gathering.end_within(1.0)
    assert [1] == [digest.ranks for digest in zero.exchange(last=True)]
    assert 0.39 < time.monotonic() - begin < 5
    one.record(window(1))
    one.gathering.end_within(1.0)
    assert [1] == [digest.ranks for digest in one.exchange(last=True)]


class Stranger:
    """A connection by hand."""

    def __init__(self, job: Job) -> None:
        self._connection = socket.create_connection(("127.0.0.1", job.port), timeout=DEADLINE)
        self._lines = self._connection.makefile("rb")
        job.strangers += [self._connection, self._lines]

    def say(self, *lines: bytes) -> None:
        """Send some."""
        with suppress(ConnectionError):  # it may have been shown out
            for line in lines:
                self._connection.sendall(line)

    def hear(self) -> Any:
        """The next line; None when the connection is closed."""
        try:
            return json.loads(self._lines.readline() or b"null")
        except ConnectionError:
            return None


def row(rank: int = 2) -> Row:
    """A window of a rank."""
    return Row(DEFINITION, Share.of(rank, window(1)))


def changed(**fields: Any) -> bytes:
    """A letter whose window is changed."""
    letter = json.loads(letters.write(1, [2], [row()]))
    for name, value in fields.items():
        letter["stats"][0][1][0][Share._fields.index(name)] = value
    return json.dumps(letter).encode() + b"\n"


def stats_of(definition: str, *windows: str) -> bytes:
    """A letter with this Stat."""
    stats = f"[[{definition}, [{', '.join(windows)}]]]"
    return f'{{"number": 1, "ranks": [2], "stats": {stats}}}\n'.encode()


MALFORMED = {
    "nothing": b"\n",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "pickle": pickle.dumps({"number": 1}) + b"\n",
    "a list": b"[1, 2]\n",
    "deep": b"[" * 100_000 + b"\n",
    "no stats": b'{"number": 1, "ranks": [2]}\n',
    "no number": b'{"number": null, "ranks": [2], "stats": []}\n',
    "a number of text": b'{"number": "1", "ranks": [2], "stats": []}\n',
    "ranks of another world": letters.write(1, [2, 4], []),
    "no definition": stats_of('["loss"]'),
    "a definition of numbers": stats_of("[1, [2], 1, 1, {}, false]"),
    "an unknown aggregation": stats_of('["a", [99], "", "", {}, false]'),
    "half a character": stats_of('["\\ud800", [2], "", "", {}, false]'),
    "a huge attribute": stats_of('["a", [2], "", "", {"x": 1' + 30 * "0" + "}, false]"),
    "a window of too few fields": stats_of('["a", [2], "", "", {}, false]', "[1, 2]"),
    "a rank of another world": changed(rank=4),
    "no samples": changed(samples=0),
    "a count of text": changed(samples="1"),
    "a sum of text": changed(sum="1"),
    "a huge sum": changed(sum=10**400),
    "an end before its start": changed(end_ns=0),
    "a step of text": changed(last_step="9"),
    "a standard deviation of text": changed(stddev="1"),
    "a histogram of numbers": changed(histogram=7),
    "a histogram of too many buckets": changed(histogram=[0, 0, 0, [1] * 161, 0, [], 1.0, 1.0, 1.0, 0]),
    "a histogram of negative counts": changed(histogram=[0, 0, 0, [-1], 0, [], 1.0, 1.0, 1.0, 0]),
    "a histogram of text": changed(histogram=[0, 0, 0, ["1"], 0, [], 1.0, 1.0, 1.0, 0]),
    "without end": b" " * (letters.LONGEST + 1),
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED)
def test_malformed_letters_are_refused(job: Job, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed and counted; the others are heard as before."""
    (zero,) = job.start(0)
    stranger = Stranger(job)
    stranger.say(letters.greet(replace(job.place(2), host="evil")))
    assert "run-7" == stranger.hear()["run"]
    with caplog.at_level(logging.WARNING):
        stranger.say(line)
        assert stranger.hear() is None
    assert (1, set()) == (zero.gathering._listener.refused, zero.gathering._listener.ranks)
    assert 1 == sum("is refused" in record.getMessage() for record in caplog.records)
    assert [] == zero.gathering._listener.take()
    good = Stranger(job)
    good.say(letters.greet(job.place(2)), letters.write(1, [2], [row()]))
    assert ["run-7", 1] == [good.hear()["run"], good.hear()["acknowledged"]]
    assert [row()] == zero.gathering._listener.take()


@pytest.mark.parametrize(
    "greeting",
    [
        letters.greet(Place("run-8", 2, 4, "node-1", (), ())),
        letters.greet(Place("run-7", 4, 4, "node-1", (), ())),
        b'{"monitel": 2, "run": "run-7", "rank": 2, "host": "node-1"}\n',
        b'{"monitel": 1, "run": "run-7", "rank": true, "host": "node-1"}\n',
        letters.write(1, [2], [row()]),
        b" " * (letters.LONGEST_GREETING + 1),
    ],
    ids=["run", "rank", "version", "bool", "letter", "long"],
)
def test_who_is_not_of_this_run_is_refused(job: Job, greeting: bytes) -> None:
    """Without an answer."""
    (zero,) = job.start(0)
    stranger = Stranger(job)
    stranger.say(greeting)
    assert stranger.hear() is None
    assert 1 == zero.gathering._listener.refused


def test_who_says_nothing_is_shown_out(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds: connections are not held for nothing."""
    monkeypatch.setattr("monitel_otlp.listener._GREETED_WITHIN", 0.1)
    (zero,) = job.start(0)
    assert Stranger(job).hear() is None
    assert 1 == zero.gathering._listener.refused


def test_a_letter_counts_once(job: Job) -> None:
    """One that is written again on a new connection, because its acknowledgement was lost."""
    (zero,) = job.start(0)
    for connection in (Stranger(job), Stranger(job)):
        connection.say(letters.greet(job.place(2)), letters.write(5, [2], [row()]))
        connection.hear()
        assert {"acknowledged": 5} == connection.hear()
    assert [row()] == zero.gathering._listener.take()


def test_a_port_that_somebody_else_has_is_passed_over(job: Job) -> None:
    """Of the three that follow from the run one is enough, and whoever answers must know the run."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[:2]
        addresses = (taken, ("127.0.0.1", job.port))
        zero = Rank(replace(job.place(0), listens=(addresses,)))
        leader = Rank(replace(job.place(2), above=addresses))
        job.ranks = {0: zero, 2: leader}
        zero.record(window(1))
        leader.record(window(1))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(link, "_ATTEMPT", 0.2)  # the other one says nothing
            job.until(lambda: sum(digest.count for digest in zero.found) == 2)


def test_much_at_once_stays_with_its_ranks(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is taken: nothing is dropped, and memory is bounded."""
    monkeypatch.setattr("monitel_otlp.listener._FULL", 100)
    zero, leader = job.start(0, 2)
    leader.record(*(window(number) for number in range(1000)))
    leader.exchange()
    waits = zero.gathering._listener
    eventually(lambda: len(waits._rows) >= 100, "nothing comes")
    assert len(waits._rows) < 1000
    job.until(lambda: not len(leader.gathering), "it does not all come")
    zero.gathering.end_within(0.0)
    assert 1000 == sum(digest.count for digest in zero.exchange(last=True))


def test_it_is_read_as_it_was_written() -> None:
    """Every field of a window and of its definition; NaN and infinities too."""
    attributes: dict[str, str | int | float] = {"a": True, "b": 1, "c": 0.1, "d": "\u20ac"}
    asked = tuple(monitel.Aggregation)
    definition = monitel.StatDefinition("x", asked, "s", "what \u20ac is", MappingProxyType(attributes), True)
    share = Share(0, BEGIN, BEGIN + 1, 3, 0.1, -float("inf"), 5e-324, 1.7e308, 2, None)
    histogram = monitel.Histogram.of([-1e300, 0.0, 1.0, 2.5, float("nan")])
    spread = share._replace(rank=1, last_step=7, stddev=0.5, histogram=histogram)
    rows = [Row(definition, share), Row(definition, spread)]
    letter = letters.read(letters.write(9, {0, 1}, rows), Place("", 0, 2, "", (), ()), {})
    assert letters.Letter(9, frozenset({0, 1}), rows) == letter
    again = letter.rows[0].definition.attributes
    assert list(map(type, attributes.values())) == list(map(type, again.values()))
    assert letter.rows[0].definition is letter.rows[1].definition


def test_sockets_are_for_this_user_alone(job: Job) -> None:
    """The node's in a folder that nobody else can enter, rank zero's on the address that it was told, and no other."""
    (zero,) = job.start(0)
    assert 0o700 == stat.S_IMODE((job.folder / "sockets").stat().st_mode)
    names = [opened.getsockname() for opened in zero.gathering._listener._sockets]
    assert [str(job.folder / "sockets" / "0"), ("127.0.0.1", job.port)] == names


def test_a_folder_that_is_open_to_others_is_not_used(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else may have made it."""
    (job.folder / "sockets").mkdir(mode=0o755)
    with caplog.at_level(logging.WARNING):
        (zero,) = job.start(0)
    assert 1 == len(zero.gathering._listener._sockets)
    assert "closed to others" in caplog.text


def launched(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Set what a launcher sets, and nothing else."""
    for name in [*sum(VARIABLES.values(), ()), *place._LOCAL_SIZE, "MASTER_ADDR", "MASTER_PORT"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "run-7", "WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_places_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a node under its first one, the first ones under rank zero."""
    found = {}
    for rank in (0, 1, 8, 9):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "GROUP_RANK": str(rank // 8), "LOCAL_WORLD_SIZE": "8"}
        launched(monkeypatch, **TORCHRUN, **own)
        found[rank] = find_place()
    assert found[0].listens == (found[1].above, found[8].above)
    assert found[8].listens == (found[9].above,)
    assert found[1].above != found[9].above
    assert [(), ()] == [found[1].listens, found[9].listens]
    assert () == found[0].above
    assert ["10.0.0.1"] * 3 == [address[0] for address in found[8].above]
    assert 3 == len(set(found[8].above))
    assert [7 + 1, 7] == [found[0].awaited, found[8].awaited]
    assert 1 == len({each.run for each in found.values()})


def test_one_node_opens_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are local."""
    launched(monkeypatch, **TORCHRUN, RANK="0", LOCAL_RANK="0", GROUP_RANK="0", LOCAL_WORLD_SIZE="16")
    assert [str] == [type(address) for group in find_place().listens for address in group]


def test_alone_there_is_nobody_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, no socket."""
    launched(monkeypatch)
    assert ((), (), 0) == (find_place().above, find_place().listens, find_place().rank)


def test_an_address_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where MASTER_ADDR is not the one, or a firewall lets one port through."""
    launched(monkeypatch, **TORCHRUN, RANK="8", LOCAL_RANK="0")
    assert (("::1", 29_600),) == find_place("[::1]:29600").above


def test_another_attempt_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the one before is not heard."""
    launched(monkeypatch, **TORCHRUN, RANK="0")
    first = find_place().run
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert first != find_place().run


@pytest.mark.parametrize("address", ["", "host", "host:", ":29600", "host:0", "host:70000", "host:x"])
def test_wrong_addresses_are_refused(address: str) -> None:
    """By what is allowed."""
    with pytest.raises(ValueError, match="must be HOST:PORT such as"):
        find_place(address)
    with pytest.raises(TypeError, match="must be a str such as"):
        find_place(29_600)  # type: ignore[arg-type]


def test_a_run_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them on one machine would be one."""
    launched(monkeypatch, RANK="0", WORLD_SIZE="2")
    with pytest.raises(ValueError, match="must know the run: set TORCHELASTIC_RUN_ID"):
        find_place()
