"""The checker: each rule is reported where it is broken, and everything that receivers accept is checked."""

import urllib.request

import grpc
import pytest
from tests.support.grpc_receiver import GrpcReceiver
from tests.support.inbox import DEADLINE, Answer, take_accepted
from tests.support.receiver import Receiver
from tests.support.validity.requests import assert_valid, violations
from tests.support.validity.rules import RULES
from tests.unit.validity.broken import ENVELOPES, LOGS, METRICS, TRACES, Break
from tests.unit.validity.samples import START_NS, Sample

GROUPS: dict[str, dict[str, Break]] = {"envelopes": ENVELOPES, "metrics": METRICS, "logs": LOGS, "traces": TRACES}
#: Rules that the broken sample of another rule breaks as well.
TOGETHER = {"scope.version": {"scope.changed"}, "scope.schema": {"scope.changed"}}


def test_valid_requests_have_no_violations() -> None:
    """The sample has metrics of each kind, an event, a record and spans."""
    assert [] == violations(Sample().requests)


def test_each_rule_has_a_broken_sample() -> None:
    """No rule is untested."""
    assert set(RULES) == {rule for broken in GROUPS.values() for rule in broken}


@pytest.mark.parametrize("group", GROUPS)
def test_broken_rule_is_reported(group: str) -> None:
    """One change breaks one rule, and exactly that one is reported."""
    expected, found = {}, {}
    for rule, break_it in GROUPS[group].items():
        sample = Sample()
        break_it(sample)
        expected[rule] = {rule} | TOGETHER.get(rule, set())
        found[rule] = {each.rule for each in violations(sample.requests)}
    assert expected == found


def test_repeated_requests_are_valid() -> None:
    """A request that was sent again after a lost answer is the same data."""
    sample = Sample()
    assert [] == violations([*sample.requests, *sample.requests])


def test_report_has_the_path_and_the_value() -> None:
    """The message names the series and both values."""
    sample = Sample()
    sample.point("loss.count").as_int = 0
    with pytest.raises(AssertionError, match=r"sent: 1\n.*falls without a new start: loss.count: 1 to 0"):
        assert_valid(sample.requests)
    assert_valid(sample.requests, broken=["series.falls"])


def test_new_start_at_the_last_point_is_a_reset() -> None:
    """A series may start anew where it ended, and only then fall."""
    sample = Sample()
    sample.point("loss.count").start_time_unix_nano = START_NS + 10**9
    sample.point("loss.count").as_int = 0
    assert [] == violations(sample.requests)


def test_order_of_requests_may_be_ignored() -> None:
    """Parts of a request that was refused, for example, are sent again behind later ones."""
    sample = Sample()
    late = [("metrics", sample.metrics), ("metrics", sample.earlier)]
    assert {"series.order"} == {each.rule for each in violations(late)}
    assert [] == violations(late, undisturbed=False)


def test_point_in_two_requests_is_reported() -> None:
    """Only the whole request may arrive again."""
    sample = Sample()
    repeated = sample.earlier.resource_metrics[0].scope_metrics[0].metrics
    del repeated[1:]
    assert [] == violations(sample.requests)
    repeated[0].gauge.data_points[0].time_unix_nano = sample.point("loss.mean").time_unix_nano
    assert {"series.duplicate"} == {each.rule for each in violations(sample.requests)}
    assert [] == violations(sample.requests, undisturbed=False)


def test_bucket_that_falls_is_reported() -> None:
    """The count of a histogram may rise while a bucket falls."""
    for name, counts in (("size", [0, 3, 3]), ("loss.histogram", [0])):
        sample = Sample()
        point = sample.point(name)
        if name == "size":
            point.bucket_counts[:], point.min = counts, 1.0
        else:
            point.positive.bucket_counts[:], point.zero_count, point.max = counts, 4, 0.0
        assert {"series.falls"} == {each.rule for each in violations(sample.requests)}


def test_remote_parent_may_be_missing() -> None:
    """The flags of a span tell whether its parent is in another process."""
    sample = Sample()
    sample.child.parent_span_id, sample.child.flags = b"unknown!", 0x300
    assert [] == violations(sample.requests)


def test_resource_of_an_application_needs_no_distribution() -> None:
    """An application's own providers have other resources."""
    sample = Sample()
    for request in (sample.earlier, sample.metrics):
        del request.resource_metrics[0].resource.attributes[4:]
        request.resource_metrics[0].schema_url = ""
    assert [] == violations(sample.requests, distro=False)
    assert {"resource.distro", "resource.schema"} == {each.rule for each in violations(sample.requests)}


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
