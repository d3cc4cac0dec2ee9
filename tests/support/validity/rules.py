"""The rules of the protocol and of the data model, each with the sentence that reports a violation."""

from dataclasses import dataclass, field

RULES = {
    # Resources and scopes
    "resource.required": "a resource attribute is missing",
    "resource.distro": "a resource attribute of the distribution is missing",
    "resource.schema": "the resource has no schema URL",
    "resource.twice": "the request has this resource twice",
    "resource.empty": "the resource has no records",
    "scope.name": "the scope has no name",
    "scope.version": "the scope of monitel has no version",
    "scope.schema": "the scope has no schema URL",
    "scope.twice": "the resource has this scope twice",
    "scope.other": "monitel has one scope, named monitel",
    "scope.changed": "version or schema URL differ from those of an earlier request",
    "attribute.key": "an attribute has a key without a letter or digit in ASCII, at which Prometheus' receiver crashes",
    "attribute.twice": "two attributes have the same key",
    "attribute.value": "an attribute has no value",
    # Metrics
    "metric.name": "a metric's name is a letter, then letters, digits and _ . - /, at most 255 characters",
    "metric.twice": "the scope has two metrics of this name, apart from upper case",
    "metric.data": "the metric has no data",
    "metric.changed": "kind, unit, temporality or monotonicity differ from those of an earlier request",
    "metric.prometheus": "Prometheus stores two metrics under one name",
    "metric.unit": "the unit is not one of UCUM",
    "metric.count.unit": "the unit of a count is 1 or an annotation, if it has one",
    "metric.total": "a metric's name does not end with .total",
    "metric.temporality": "a sum or histogram has no temporality",
    "metric.updown": "a sum that may fall is cumulative",
    # Points
    "point.time": "a point has no time",
    "point.start.missing": "a point of a sum or histogram has no start",
    "point.start.late": "a point starts after its time",
    "point.start.equal": "a point that is not empty starts at its time",
    "point.value": "a point has no value",
    "point.nan": "a value that adds up is not a number",
    "point.negative": "a monotonic sum is negative",
    "point.flags": "a point has flags",
    # Histograms
    "histogram.count": "the counts of the buckets do not add up to the count",
    "histogram.bounds": "the bounds of the buckets do not ascend",
    "histogram.buckets": "a histogram has one bucket more than bounds, or no buckets",
    "histogram.minmax": "min and max are not within the buckets",
    "histogram.sum": "a histogram with negative values has a sum",
    "histogram.sum.range": "the sum is not between count * min and count * max",
    "histogram.scale": "the scale is not between -10 and 20",
    "histogram.zero": "the zero threshold is negative or not a number",
    # Series
    "series.duplicate": "a series has two points of one time; of monitel, of one millisecond",
    "series.order": "the points of a series arrive out of order",
    "series.start": "a cumulative series starts anew before its last point",
    "series.continues": "a monotonic series starts anew at its last point, as a delta does, but its value goes on",
    "series.falls": "a monotonic series falls without a new start",
    "series.overlap": "two delta intervals of a series overlap",
    # Logs
    "log.time": "a log record has neither time nor observed time",
    "log.severity": "severity number and text disagree, or the number is unknown",
    "log.event.severity": "an event of monitel has no severity text",
    "log.ids": "trace id or span id of a log record have wrong lengths, or a span id comes without a trace id",
    "log.event": "a log record has neither event name nor body",
    # Traces
    "span.ids": "trace id, span id or parent id have wrong lengths or are zero",
    "span.duplicate": "two spans that differ have the same id",
    "span.time": "a span has no time, or ends before it starts",
    "span.name": "a span has no name",
    "span.kind": "a span has no kind",
    "span.status": "a status that is not an error has a message",
    "span.parent": "the parent of a span is missing, and is not remote",
    "span.parent.trace": "the parent of a span is in another trace",
    "span.cycle": "a span is its own ancestor",
    "span.within": "a span is not within its parent",
}


@dataclass(frozen=True)
class Finding:
    rule: str
    path: str
    value: str

    def __str__(self) -> str:
        return f"{self.rule}: {RULES[self.rule]}: {self.path}: {self.value}"


@dataclass
class Findings:
    found: list[Finding] = field(default_factory=list)

    def add(self, rule: str, path: str, value: object = "") -> None:
        assert rule in RULES
        self.found.append(Finding(rule, path, str(value)))

    def check(self, holds: object, rule: str, path: str, value: object = "") -> None:
        if not holds:
            self.add(rule, path, value)
