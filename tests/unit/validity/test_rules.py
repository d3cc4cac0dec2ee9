"""The checker itself: a valid sample has no violations, and each rule is reported where it is broken."""

import pytest
from tests.support.validity.requests import assert_valid, violations
from tests.support.validity.rules import RULES
from tests.unit.validity.broken_metrics import METRICS, Break
from tests.unit.validity.broken_records import ENVELOPES, LOGS, TRACES
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
