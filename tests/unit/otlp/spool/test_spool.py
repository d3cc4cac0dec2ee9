"""The spool returns the requests that were written to it, after restarts, crashes and damage to files."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.spools import drain, make_request

from monitel_otlp.messages.request import SIGNALS, FrozenRequest
from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.spool import Spool

requests = st.builds(
    FrozenRequest,
    st.sampled_from(SIGNALS),
    st.binary(max_size=300),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=40),
    st.integers(0, 2**32 - 1),
)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["put", "read", "remove", "restart"]), requests), max_size=30))
def test_spool_is_a_queue_across_restarts(steps: list[tuple[str, FrozenRequest]]) -> None:
    """Each request is read once, in order, by this process or the next one; items add up."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "SEGMENT_BYTES", 500)
        folder = Path(root) / "spool"
        expected: dict[str, list[FrozenRequest]] = {signal: [] for signal in SIGNALS}
        own: list[FrozenRequest] = []
        spool = Spool(folder)
        for step, request in steps:
            waiting = expected[request.signal]
            if step == "put":
                spool.append(request)
                waiting.append(request)
                own.append(request)
            elif step == "restart":
                spool.close()
                spool = Spool(folder)
                own.clear()
                if folder.exists():
                    spool.load()
            else:
                assert (waiting[0] if waiting else None) == spool.oldest(request.signal)
                if step == "remove" and waiting:
                    assert spool.remove_oldest(request.signal)
                    own = [each for each in own if each is not waiting[0]]
                    del waiting[0]
            for signal in SIGNALS:
                assert sum(each.items for each in own if each.signal == signal) == spool.items(signal)
        assert [request for signal in SIGNALS for request in expected[signal]] == list(spool.requests())
        assert {} == spool.take_lost("metrics") | spool.take_lost("logs") | spool.take_lost("traces")
        spool.close()
        assert any(expected.values()) == folder.exists()


@settings(max_examples=20)
@given(st.lists(requests.map(lambda request: (request, request.body[:5].decode("latin-1"))), max_size=5))
def test_rejected_requests_are_kept_with_the_reason_and_taken_back(given: list[tuple[FrozenRequest, str]]) -> None:
    """No rejected request replaces another; taken back, they are unchanged and in the order of creation."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "spool"
        with closing(Spool(folder)) as spool:
            for request, reason in given:
                path = spool.set_aside(request, reason)
                assert (request.body, reason.encode()) == (path.read_bytes(), path.with_suffix(".txt").read_bytes())
        if not given:
            return
        with closing(Spool(folder)) as spool:
            spool.take_back()
            found = list(spool.requests())
        by_age = sorted((request for request, _ in given), key=lambda request: request.created_ns)
        assert len(given) == len(found)
        for signal in SIGNALS:
            of_signal = [request.created_ns for request in found if request.signal == signal]
            assert [request.created_ns for request in by_age if request.signal == signal] == of_signal
        assert {*by_age} == {*found}
        assert not (folder / "rejected").exists()


def test_signals_without_an_endpoint_are_not_limited(tmp_path: Path) -> None:
    """The limit applies only to signals with an endpoint."""
    with closing(Spool(tmp_path / "spool", 500, ["metrics"])) as spool:
        spool.append(make_request(1, "logs", body=b"x" * 1000))
        assert spool.oldest("logs") is not None


def test_request_that_is_being_sent_survives_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its removal removes no other request, and its items are counted once."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)
    with closing(Spool(tmp_path / "spool", 700)) as spool:
        first = make_request(0, body=b"x" * 200, items=10)
        spool.append(first)
        assert first == spool.oldest("metrics")
        for number in range(1, 6):
            spool.append(make_request(number, body=b"x" * 200, items=10))
        assert first == spool.oldest("metrics")
        items = spool.items("metrics")
        assert {"spool_full": 60 - items} == spool.take_lost("metrics")
        assert spool.remove_oldest("metrics")
        assert items - 10 == spool.items("metrics")
        assert [4, 5] == [request.created_ns for request in drain(spool)]
        assert (0, {}) == (spool.items("metrics"), spool.take_lost("metrics"))
