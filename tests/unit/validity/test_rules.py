"""The checker: each rule is reported where it is broken, and everything that receivers accept is checked."""

import urllib.request
from typing import Any

import pytest
from tests.support.inbox import DEADLINE, Answer, take_accepted
from tests.support.receiver import Receiver
from tests.support.validity.requests import assert_valid, violations
from tests.support.validity.rules import RULES
from tests.unit.validity.broken import ENVELOPES, LOGS, METRICS, TRACES, change, counts
from tests.unit.validity.samples import Sample

#: Rules that the broken sample of another rule breaks as well.
TOGETHER = {"scope.version": {"scope.changed"}, "scope.schema": {"scope.changed"}}


def test_each_broken_rule_is_reported() -> None:
    """One change of valid requests breaks one rule, and exactly that one is reported; no rule is left out."""
    assert [] == violations(Sample().requests)
    expected, found = {}, {}
    for rule, break_it in {**ENVELOPES, **METRICS, **LOGS, **TRACES}.items():
        sample = Sample()
        break_it(sample)
        expected[rule] = {rule} | TOGETHER.get(rule, set())
        found[rule] = {each.rule for each in violations(sample.requests)}
    assert (expected, {*RULES}) == (found, {*found})


def test_report_has_the_path_and_the_value() -> None:
    sample = Sample()
    sample.point("loss.count").as_int = 0
    with pytest.raises(AssertionError, match=r"sent: 1\n.*falls without a new start: loss.count: 1 to 0"):
        assert_valid(sample.requests)
    assert_valid(sample.requests, broken=["series.falls"])


def test_order_of_requests_may_be_ignored() -> None:
    """Parts of a request that was refused are sent again behind later ones; otherwise only a whole request may be."""
    sample = Sample()
    late = [("metrics", sample.metrics), ("metrics", sample.earlier)]
    repeated = sample.earlier.resource_metrics[0].scope_metrics[0].metrics
    assert {"series.order"} == {each.rule for each in violations(late)}
    del repeated[1:]
    assert [] == violations(sample.requests)
    repeated[0].gauge.data_points[0].time_unix_nano = sample.point("loss.mean").time_unix_nano
    assert {"series.duplicate"} == {each.rule for each in violations(sample.requests)}
    assert [] == [*violations(late, undisturbed=False), *violations(sample.requests, undisturbed=False)]


def test_bucket_that_falls_is_reported() -> None:
    """The count of a histogram may rise while a bucket falls."""
    explicit, exponential = Sample(), Sample()
    change(lambda sample: sample.point("size"), min=1.0)(explicit)
    counts("size", [0, 3, 3])(explicit)
    change(lambda sample: sample.point("loss.histogram"), zero_count=4, max=0.0)(exponential)
    exponential.point("loss.histogram").positive.bucket_counts[:] = [0]
    for sample in (explicit, exponential):
        assert {"series.falls"} == {each.rule for each in violations(sample.requests)}


_EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def test_accepted_requests_are_checked(receiver: Receiver, grpc_receiver: Any, request: pytest.FixtureRequest) -> None:
    """An invalid request is found whether it came over HTTP or gRPC; a refused one is not checked."""
    import grpc

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
