"""The check at the end of each test: it has everything that the receivers of the test have accepted."""

import urllib.request

import grpc
import pytest
from tests.support.grpc_receiver import GrpcReceiver
from tests.support.inbox import DEADLINE, Answer, take_accepted
from tests.support.receiver import Receiver
from tests.support.validity.requests import assert_valid
from tests.unit.validity.samples import Sample

_EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def test_every_accepted_request_is_checked(
    receiver: Receiver, grpc_receiver: GrpcReceiver, request: pytest.FixtureRequest
) -> None:
    """An invalid request is found whether it came over HTTP or gRPC; a refused one is not checked."""
    assert "valid_output" in request.fixturenames
    sample = Sample()
    sample.point("loss.count").time_unix_nano = 0
    body = sample.metrics.SerializeToString()
    post = urllib.request.Request(f"{receiver.url}/v1/metrics", body, {"Content-Type": "application/x-protobuf"})
    receiver.answer("metrics", Answer(400))
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(post, timeout=DEADLINE)
    assert [] == [each for each in receiver.of("metrics") if each.answer.takes]
    urllib.request.urlopen(post, timeout=DEADLINE).close()
    with grpc.insecure_channel(grpc_receiver.address) as channel:
        channel.unary_unary(_EXPORT, None, None)(body, timeout=DEADLINE)
    accepted = take_accepted()
    assert [("metrics", sample.metrics)] * 2 == accepted
    with pytest.raises(AssertionError, match=r"point\.time: a point has no time"):
        assert_valid(accepted)
