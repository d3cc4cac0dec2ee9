"""Unsent items are on disk, exactly; ``cat`` and ``replay`` read them; files are private, and damage is reported."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.checks import SetEnv, wait_until
from tests.support.commands import command
from tests.support.hostile import refusing_url, reserved_port
from tests.support.inbox import DEADLINE, TEMPORALITY, Answer
from tests.support.pipelines import Start, busy_encoder, delivered_by
from tests.support.producers import make_small
from tests.support.receiver import Receiver
from tests.support.spools import cat, files

import monitel as monitel_api
from monitel import COUNT, HISTOGRAM, MEAN, SUM, Stat
from monitel.profiler import record_function
from monitel.testing import ManualClock

EVENTS = [f"event {number}" for number in range(20)]


def record(start: Start, count: int = 20, flush_s: float = DEADLINE, **options: Any) -> Path:
    pipeline = start(**{"endpoint": None, "spans": True, **options})
    stat = Stat("loss", [COUNT, SUM, MEAN], 60.0)
    for number, name in enumerate(EVENTS[:count]):
        stat.add(number)
        stat.flush()
        with record_function(f"span {number}"):
            monitel_api.emit(name, number=number)
        pipeline.force_flush(flush_s if options.get("endpoint") is None else 0.0)
    pipeline.shutdown()
    return Path(pipeline.spool_dir)


def test_what_was_recorded_is_on_disk_exactly(start: Start, clock: ManualClock, tmp_path: Path) -> None:
    """Windows, events and spans have their values, times, attributes and order; half was not encoded in time."""
    began = clock.time_ns()
    pipeline = start(endpoint=refusing_url(), resource_attributes={"team": "a"}, spans=True)
    stat = Stat("loss", [COUNT, SUM, MEAN], 60.0, attributes={"layer": 3})

    def items(numbers: range) -> None:
        for number in numbers:
            monitel_api.set_step(number)
            stat.add(number)
            clock.advance(60)
            with record_function(f"span {number}"):
                monitel_api.emit(f"event {number}", number=number, text="é")

    items(range(25))
    pipeline.force_flush(0.0)
    with busy_encoder(pipeline):
        items(range(25, 50))
        assert not pipeline.shutdown()
    assert [(50, 50)] * 3 == [(each.recorded, each.on_disk) for each in pipeline.account().values()]
    content = cat(tmp_path / "spool")
    assert [*range(1, 51)] == content.values("loss.count")
    assert [sum(range(number + 1)) for number in range(1, 50)] == content.values("loss.sum")
    means = content.points("loss.mean")
    assert [(number, began + (number + 1) * 60 * 10**9, {"layer": 3}) for number in range(50)] == [
        (each.value, each.time_ns, each.attributes) for each in means
    ]
    assert [f"event {number}" for number in range(50)] == content.names
    assert [{"number": number, "text": "é", "training.step": number} for number in range(50)] == [
        each.attributes for each in content.records
    ]
    assert [f"span {number}" for number in range(50)] == [each.name for each in content.spans]
    assert [each.span_id for each in content.spans] == [each.span_id for each in content.records]
    everything: list[Any] = [*means, *content.records, *content.spans]
    assert {"a"} == {each.resource["team"] for each in everything}


@pytest.mark.parametrize(
    ("encoded", "temporality"), [(True, "cumulative"), (False, "delta")], ids=["encoded", "not encoded in time"]
)
def test_replayed_points_are_those_that_are_sent_live(
    *, receiver: Receiver, start: Start, clock: ManualClock, monkeypatch: Any, encoded: bool, temporality: str
) -> None:
    """Totals, histograms and percentiles have the same values, starts and times, whichever way they take."""
    monkeypatch.setenv(TEMPORALITY, temporality)
    began: dict[str, int] = {}

    def items(way: str) -> None:
        began[way] = clock.time_ns()
        stat = Stat("x", [COUNT, SUM, HISTOGRAM], 60.0, unit="s", attributes={"layer": 3}, monotonic=True)
        for sample in (0.0, 2.5, 1000.0):
            stat.add(sample)
            stat.add(3 * sample)
            clock.advance(60)
        stat.flush()

    live = start(distributions="both", resource_attributes={"way": "live"})
    items("live")
    assert live.shutdown(DEADLINE)
    stored = start(distributions="both", resource_attributes={"way": "stored"}, endpoint=refusing_url())
    if encoded:
        items("stored")
        stored.force_flush(0.0)
    else:
        with busy_encoder(stored):
            items("stored")
            assert not stored.shutdown()
    assert not stored.shutdown()
    assert 0 == command("replay", stored.spool_dir, "--endpoint", receiver.url).status
    found: dict[str, list[Any]] = {"live": [], "stored": []}
    for point in receiver.all_points():
        if point.metric.startswith("x."):
            zero_ns, proto = began[point.resource["way"]], type(point.proto)()
            proto.CopyFrom(point.proto)
            proto.time_unix_nano -= zero_ns
            proto.start_time_unix_nano -= zero_ns if point.start_ns else 0
            found[point.resource["way"]].append((point.metric, point.kind, point.temporality, point.unit, str(proto)))
    assert {"x.count", "x.sum", "x.histogram", "x.p50", "x.p99"} <= {metric for metric, *_ in found["live"]}
    assert found["live"] == found["stored"]


@pytest.mark.invalid_output("both pipelines are of one process, and have one resource", "series.order")
def test_next_pipeline_delivers_what_the_last_one_left(start: Start) -> None:
    """The next one has the same endpoint and the same ``spool_dir``; the items are not in its account."""
    with reserved_port() as port, ExitStack() as started:
        url = f"http://127.0.0.1:{port}"
        folder = record(start, endpoint=url)
        receiver = started.enter_context(Receiver(port))
        pipeline = start(endpoint=url)
        monitel_api.emit("own")
        assert pipeline.force_flush(DEADLINE)
        receiver.wait_until(lambda: 21 == len(receiver.records()) and 20 == len(receiver.spans()))
        wait_until(lambda: not folder.exists())
        assert pipeline.shutdown(DEADLINE)
        assert {*EVENTS, "own"} == {*receiver.record_names()}
        assert EVENTS == [name for name in receiver.record_names() if name != "own"]
        assert 1 == pipeline.account()["logs"].recorded


@pytest.mark.invalid_output("all pipelines are of one process, and have one resource", "series.order")
def test_leftovers_that_are_refused_do_not_stop_the_others(start: Start) -> None:
    """Such as those with histograms, by a Prometheus that was started without them."""
    with reserved_port() as port, ExitStack() as started:
        folders = [record(start, endpoint=f"http://127.0.0.1:{port}") for _ in range(2)]
        receiver = started.enter_context(Receiver(port))
        receiver.answer("logs", Answer(), Answer(401))
        pipeline = start(endpoint=receiver.url)
        monitel_api.emit("own")
        assert pipeline.force_flush(DEADLINE)
        wait_until(lambda: [True, False] == [each.exists() for each in folders])
        assert pipeline.shutdown(DEADLINE)


def test_leftovers_wait_until_the_backend_accepts_a_request(receiver: Receiver, start: Start) -> None:
    """Nothing is sent to a backend that is away, or that refuses the requests of this pipeline."""
    receiver.rule(lambda _request: Answer(503))
    folder = record(start, endpoint=receiver.url)
    receiver.requests.clear()
    receiver.rule(lambda request: Answer() if b"event 1" in request.body else None)
    pipeline = start()
    monitel_api.emit("own")
    assert not pipeline.force_flush(0.5)
    pipeline.shutdown()
    assert [] == [each for each in receiver.requests if b"event 1" in each.body]
    assert EVENTS == cat(folder).names


@pytest.mark.invalid_output("both pipelines are of one process, and have one resource", "series.order")
def test_signal_without_an_endpoint_does_not_stop_the_delivery_of_leftovers(
    start: Start, setenv: SetEnv, tmp_path: Path
) -> None:
    """Its items stay in each folder; the other signals of all folders are delivered."""
    with reserved_port() as port, ExitStack() as started:
        setenv(OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=f"http://127.0.0.1:{port}/v1/logs")
        folders = [record(start, count=5, flush_s=0.0) for _ in range(2)]
        receiver = started.enter_context(Receiver(port))
        pipeline = start(endpoint=None)
        monitel_api.emit("own")
        assert pipeline.force_flush(DEADLINE)
        receiver.wait_until(lambda: 11 == len(receiver.records()))
        pipeline.shutdown()
    assert [{"metrics", "traces"}] * 2 == [{signal for signal, _ in cat(folder).requests} for folder in folders]


def test_what_was_recorded_for_another_endpoint_is_left_alone(receiver: Receiver, start: Start) -> None:
    """Telemetry without an endpoint waits for ``replay``; that of another one is sent only there."""
    folders = [record(start), record(start, endpoint=refusing_url())]
    with delivered_by(start()) as pipeline:
        monitel_api.emit("own")
    assert pipeline.shutdown(DEADLINE)
    assert ["own"] == receiver.record_names()
    assert [EVENTS, EVENTS] == [cat(folder).names for folder in folders]


def test_limit_of_size_drops_the_oldest_and_counts_them(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The newest requests stay; on disk and dropped items add up to the recorded ones."""
    make_small(monkeypatch, memory_bytes=2_000, spool_bytes=20_000)
    receiver.rule(lambda _request: Answer(503))
    pipeline, names = start(), [f"event {number}" for number in range(120)]
    for name in names:
        monitel_api.emit(name, text="x" * 200)
        pipeline.force_flush(0.0)
        wait_until(lambda: receiver.of("logs"), "a request of the first event alone, which is sent again and again")
        # 2,000 bytes are three or four requests, and one is being sent; those beyond twice as much would be dropped.
        wait_until(lambda: pipeline.account()["logs"].waiting < 6, "events on disk")
    assert not pipeline.shutdown()
    account = pipeline.account()["logs"]
    assert 120 == account.on_disk + account.lost
    assert {"spool_full": account.lost} == dict(account.dropped)
    assert 10 < account.on_disk < 100
    found = cat(tmp_path / "spool").names
    newest = [name for name in found if name not in names[:16]]  # the request that is being sent is kept as well
    assert (account.on_disk, names[-len(newest) :]) == (len(found), newest)
    assert names[: len(found) - len(newest)] == [name for name in found if name not in newest]
    assert sum(path.stat().st_size for path in files(tmp_path / "spool")) < 20_000 + 8_000  # and that request


def test_items_in_files_that_disappear_are_counted(start: Start, tmp_path: Path) -> None:
    """A cleaner of temporary files removes the folder: its items are dropped as ``disk``, later ones are on disk."""
    pipeline = start(endpoint=None)
    for name in ("first", "second"):
        monitel_api.emit(name)
        assert pipeline.force_flush(DEADLINE)
    assert 2 == pipeline.account()["logs"].on_disk
    shutil.rmtree(pipeline.spool_dir)
    monitel_api.emit("third")
    pipeline.force_flush(DEADLINE)
    assert not pipeline.shutdown()
    account = pipeline.account()["logs"]
    assert (3, 1, {"disk": 2}) == (account.recorded, account.on_disk, dict(account.dropped))
    assert ["third"] == cat(tmp_path / "spool").names


@pytest.mark.parametrize("kind", ["symlink", "dangling link", "pipe"])
def test_planted_file_is_not_followed(receiver: Receiver, start: Start, tmp_path: Path, kind: str) -> None:
    """Whichever file of the spool it replaces, the target is neither changed, nor made, nor sent; nothing hangs."""
    victim, whole = tmp_path / "victim", record(start, count=2)
    victim.write_bytes(b"root:x:0:0")
    make: dict[str, Callable[[Path], object]] = {
        "symlink": lambda path: path.symlink_to(victim),
        "dangling link": lambda path: path.symlink_to(tmp_path / "made"),
        "pipe": os.mkfifo,
    }
    names = {path.name for path in whole.iterdir()} | {"lock", "position", "totals", "ended", "state", "page"}
    names |= {"rejected-000000000000001.log", "position.new", "logs-000000000000002.log"}
    before = victim.stat()
    for name in sorted(names):
        folder = tmp_path / "copies" / name
        shutil.copytree(whole, folder)
        (folder / name).unlink(missing_ok=True)
        make[kind](folder / name)
        command("cat", folder)
        for rejected in ([], ["--rejected"]):
            command("replay", folder, *rejected, "--endpoint", receiver.url)
    after = victim.stat()
    assert (b"root:x:0:0", before.st_mode) == (victim.read_bytes(), after.st_mode)
    assert before.st_mtime_ns == after.st_mtime_ns
    assert not (tmp_path / "made").exists()
    assert all(b"root:x" not in request.body for request in receiver.requests)


def test_running_pipeline_does_not_follow_a_link_in_place_of_its_folder(start: Start, tmp_path: Path) -> None:
    """The items in the folder stay there; later ones stay in memory."""
    with delivered_by(start(endpoint=None)) as pipeline:
        monitel_api.emit("first")
    folder, elsewhere = Path(pipeline.spool_dir), tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(elsewhere)
    monitel_api.emit("second")
    pipeline.force_flush(DEADLINE)
    pipeline.shutdown()
    assert [] == list(elsewhere.iterdir())
    assert ["first"] == cat(tmp_path / "moved").names
