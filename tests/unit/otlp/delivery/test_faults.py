"""A backend with faults: unacknowledged requests are kept in order, and losses are counted."""

import random
import time

from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import Start
from tests.support.receiver import Receiver

import monitel


def test_retries_do_not_use_the_global_random_generator(receiver: Receiver, start: Start) -> None:
    """A seeded program draws the same numbers with a healthy backend and with a faulty one."""
    pipeline = start()
    receiver.rule(lambda _request: Answer(503))
    state = random.getstate()
    monitel.emit("first")
    assert not pipeline.force_flush(0.2)
    receiver.wait_until(lambda: receiver.of("logs"))
    assert state == random.getstate()


def test_request_that_the_exit_leaves_for_the_disk_is_not_sent(receiver: Receiver, start: Start) -> None:
    """The backend comes back after the last attempt: what is sent and written to disk would arrive twice."""
    receiver.rule(lambda _: Answer(503))
    pipeline = start()
    assert pipeline.engine is not None
    monitel.emit("before")
    pipeline.force_flush(0.1)
    sender = pipeline.engine._senders["logs"]
    sender.finish(time.monotonic())
    assert sender.finished.wait(DEADLINE)
    receiver.forget_rules()
    sender._send_waiting()  # as after a wake that the thread has not seen
    pipeline.shutdown()
    assert [] == receiver.records("before")
    assert 1 == pipeline.account()["logs"].on_disk
