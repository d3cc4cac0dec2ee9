"""Fixtures: backends, and pipelines whose accounts are checked at the end of each test."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import inbox
from tests.support.inbox import DEADLINE, Inbox
from tests.support.pipelines import Start, check_accounts
from tests.support.receiver import Receiver
from tests.support.validity.requests import assert_valid

import monitel_otlp
from monitel_otlp import Pipeline

_made: list[Pipeline] = []  # in this test

_initialize = Pipeline.__init__


def _keep(self: Pipeline, *arguments: Any, **options: Any) -> None:
    _initialize(self, *arguments, **options)
    _made.append(self)


Pipeline.__init__ = _keep  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def accounts_add_up(fresh_state: None) -> Iterator[None]:
    """Check the account of every pipeline that the test made, at its end: nothing may vanish."""
    _made.clear()
    _forget_series()
    yield
    if not _made:
        return
    running = [each for each in _made if each.engine is not None and not each._over.is_set()]
    for pipeline in _made:
        check_accounts(pipeline)
        pipeline.shutdown()
        check_accounts(pipeline)
        assert {0} == {each.waiting for each in pipeline.account().values()}
    _made.clear()
    assert not running, f"the test leaves {len(running)} running pipelines"


def _forget_series() -> None:
    """Forget what pipelines have sent: with a manual clock, counters of several tests have one start."""
    sys.modules["monitel_otlp.metrics.points"].SENT.clear()
    sys.modules["monitel_otlp.export.engine"]._newest_ns.clear()  # clocks of tests run ahead


@pytest.fixture(autouse=True)
def valid_output(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check everything that the receivers have accepted in the test by the rules of OTLP's data model.

    A test that breaks rules on purpose has the marker ``invalid_output`` with the reason and the names of the rules.
    """
    failures = request.session.testsfailed
    yield
    if not inbox.opened:
        return
    undisturbed, accepted = inbox.all_accepted(), inbox.take_accepted()
    broken = [name for mark in request.node.iter_markers("invalid_output") for name in mark.args[1:]]
    if accepted and request.session.testsfailed == failures:
        assert_valid(accepted, undisturbed=undisturbed, broken=broken)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A backend that accepts everything over HTTP, unless the test sets other answers."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def grpc_receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A backend that accepts everything over gRPC, unless the test sets other answers."""
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # as the transport sets it
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    pytest.importorskip("grpc", reason="the extra monitel-otlp[grpc] is not installed")
    from tests.support.grpc_receiver import GrpcReceiver

    with GrpcReceiver() as receiver:
        yield receiver


@pytest.fixture(params=["receiver", "grpc_receiver"])
def backend(request: pytest.FixtureRequest) -> Inbox:
    """A backend that accepts everything, over HTTP and over gRPC, unless the test sets other answers."""
    found: Inbox = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def blackhole() -> Iterator[socket.socket]:
    """An endpoint that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE)
        yield listening


@pytest.fixture
def start(receiver: Receiver, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a pipeline with these arguments, to the receiver or to another backend."""
    pipelines: list[Pipeline] = []

    def start(backend: Inbox | None = None, /, **arguments: Any) -> Pipeline:
        usual = {"endpoint": receiver.url, "export_interval": 3600.0, "spool_dir": tmp_path / "spool"}
        if backend is not None:
            usual |= {"endpoint": backend.url, "protocol": backend.protocol}
        pipelines.append(monitel_otlp.configure(**{**usual, **arguments}))
        return pipelines[-1]

    yield start
    for pipeline in pipelines:
        pipeline.shutdown()
