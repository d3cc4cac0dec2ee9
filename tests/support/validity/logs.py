"""Log records: times, severity, ids and content."""

from tests.support.validity.envelope import OWN, Scoped, check_attributes
from tests.support.validity.rules import Findings

#: First number of the four that each text of the data model or of Python's logging stands for.
_TEXTS = {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21, "WARNING": 13, "CRITICAL": 21}


def check_logs(scoped: Scoped, findings: Findings) -> None:
    for number, record in enumerate(scoped.records):
        path = f"{scoped.path}[{number}] {record.event_name}"
        check_attributes(record.attributes, path, findings)
        findings.check(record.time_unix_nano or record.observed_time_unix_nano, "log.time", path)
        _check_severity(record.severity_number, record.severity_text, path, findings)
        lengths = len(record.trace_id), len(record.span_id)
        is_zero = any(part and not any(part) for part in (record.trace_id, record.span_id))
        findings.check(lengths in {(0, 0), (16, 0), (16, 8)} and not is_zero, "log.ids", path, lengths)
        findings.check(record.event_name or record.body.WhichOneof("value"), "log.event", path)
        if scoped.scope == OWN and record.event_name:
            findings.check(record.severity_number and record.severity_text, "log.event.severity", path)


def _check_severity(number: int, text: str, path: str, findings: Findings) -> None:
    first = _TEXTS.get(text.upper().rstrip("234"))
    agree = first is None or number in range(first, first + 4)
    findings.check(0 <= number <= 24 and agree, "log.severity", path, f"{number} {text}")
