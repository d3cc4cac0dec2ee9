"""``python -m monitel_otlp cat``: spooled telemetry as OTLP JSON lines."""

from __future__ import annotations

import base64
import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import Parse
from tests.support.inbox import Answer
from tests.support.spools import folders
from tests.support.validity.requests import assert_valid
from tests.unit.otlp.commands.spooled_run import EVENTS, POISON

from monitel_otlp.messages.request import REQUESTS
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.unit.otlp.commands.spooled_run import Command


def test_cat_prints_otlp_json(command: Command, runs: Path) -> None:
    """Each line is one request: parsing it gives the same message; ids are hexadecimal, and enums are integers."""
    ended = command("cat", runs)
    kinds = {"resourceMetrics": "metrics", "resourceLogs": "logs", "resourceSpans": "traces"}
    kept = list(Spool(folders(runs)[0]).peek())
    lines = ended.stdout.splitlines()
    assert len(kept) == len(lines)
    assert_valid((request.signal, request.message()) for request in kept)
    for request, line in zip(kept, lines, strict=True):
        document = json.loads(line)
        (kind,) = document
        assert request.signal == kinds[kind]
        parsed = Parse(json.dumps(_with_base64_ids(document)), REQUESTS[request.signal]())
        assert request.message().SerializeToString() == parsed.SerializeToString()  # messages with a NaN can be unequal
    text = ended.stdout
    ids = re.findall(r'"(traceId|spanId)":"([^"]*)"', text)
    assert 80 == len(ids)
    assert {("traceId", 32), ("spanId", 16)} == {(name, len(value)) for name, value in ids}
    assert all(re.fullmatch("[0-9a-f]+", value) for _name, value in ids)
    assert {"9"} == set(re.findall(r'"severityNumber":([^,]*)', text))
    assert '"NaN"' in text
    assert '"Infinity"' in text
    assert "tiefe Größe" in text


def _with_base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_base64_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode() if key in {"traceId", "spanId"} else _with_base64_ids(each)
        for key, each in value.items()
    }


def test_cat_removes_nothing_and_reads_a_spool_in_use(receiver: Receiver, command: Command, runs: Path) -> None:
    """The output is the same while another process uses the spool, and everything can still be delivered."""
    (folder,) = runs.iterdir()
    with closing(Spool(folder)) as spool:
        spool.load()
        assert command("cat", folder).stdout == command("cat", runs).stdout
    command("replay", runs, "--endpoint", receiver.url)
    assert EVENTS == receiver.record_names()


def test_cat_prints_the_remaining_requests(receiver: Receiver, command: Command, runs: Path) -> None:
    """After an interrupted replay, requests that were not delivered are printed."""
    receiver.rule(lambda request: Answer(401) if POISON in request.body else None)
    command("replay", runs, "--endpoint", receiver.url, returncode=1)
    ended = command("cat", runs)
    assert EVENTS[7:] == re.findall(r'"eventName":"([^"]*)"', ended.stdout)


def test_cat_of_an_unsafe_folder_needs_an_option(command: Command, runs: Path) -> None:
    """The format of raw segments is not safe against an attacker."""
    (folder,) = runs.iterdir()
    folder.chmod(0o777)
    assert "--foreign" in command("cat", runs, returncode=1).stderr
    assert EVENTS == re.findall(r'"eventName":"([^"]*)"', command("cat", runs, "--foreign").stdout)
