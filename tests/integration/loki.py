"""A real Loki as ``compose/`` configures it, and a client that reads events back by LogQL."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.services import Program, answer_of, free_port
from tests.support.paths import ROOT

COMPOSE = ROOT / "compose"

# With it, an answer keeps the labels of the index apart from the attributes that are stored beside a line.
_CATEGORIZE = {"X-Loki-Response-Encoding-Flags": "categorize-labels"}
_LIMIT = 5000  # of lines in an answer: Loki's own limit


@dataclass(frozen=True)
class Record:
    time_ns: int
    line: str
    labels: Mapping[str, str]  # of Loki's index
    attributes: Mapping[str, str]  # beside the line: of the record, its scope and its resource


@dataclass(frozen=True)
class Loki:
    url: str
    selector: str = ""

    def records(self, line: str = "", hours: float = 1.0) -> list[Record]:
        """Return the stored records that contain a text, of the last hours and the next minute, in order of time."""
        now = time.time_ns()
        times = {"start": now - int(hours * 3600 * 10**9), "end": now + 60 * 10**9}
        query = f"{self.selector} |= `{line}`"
        streams = self.get("query_range", query=query, limit=_LIMIT, **times)["result"]
        records = [
            Record(int(at), text, stream["stream"], categories["structuredMetadata"])
            for stream in streams
            for at, text, categories in stream["values"]
        ]
        assert len(records) < _LIMIT
        return sorted(records, key=lambda record: record.time_ns)

    def get(self, path: str, **parameters: object) -> Any:
        """Return the ``data`` of an answer; an error has Loki's own words."""
        return answer_of(f"{self.url}/loki/api/v1/{path}", parameters, _CATEGORIZE)["data"]

    def alerts(self) -> list[dict[str, Any]]:
        alerts: list[dict[str, Any]] = answer_of(f"{self.url}/prometheus/api/v1/alerts")["data"]["alerts"]
        return alerts

    def rules(self) -> list[dict[str, Any]]:
        return [
            rule
            for group in answer_of(f"{self.url}/prometheus/api/v1/rules")["data"]["groups"]
            for rule in group["rules"]
        ]


def loki_program(backends: Path, folder: Path, rules: Path = COMPOSE / "loki-rules") -> tuple[str, Program]:
    """Return the URL of a Loki with the configuration that users run, and its program; data is in the folder."""
    port = free_port()
    environment = {
        "LOKI_PORT": str(port),
        "LOKI_GRPC_PORT": str(free_port()),
        "LOKI_DIR": str(folder / "loki"),
        "LOKI_RULES": str(rules),
    }
    command = [str(backends / "loki"), f"-config.file={COMPOSE / 'loki.yaml'}", "-config.expand-env=true"]
    url = f"http://127.0.0.1:{port}"
    return url, Program(command, folder / "loki.log", f"{url}/ready", environment)
