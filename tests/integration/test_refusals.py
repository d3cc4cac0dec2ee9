"""The account of a run of which a real Loki refuses some log records."""

import json
from pathlib import Path

import pytest
from tests.integration.conftest import Loki, Python

RUN = """\
import json, random, sys
from datetime import datetime, timedelta, timezone
import monitel, monitel_otlp

now = datetime.now(timezone.utc)
ages = {"good": 0, "behind": 26, "old": 24 * 40, "large": 0}
rng = random.Random(sys.argv[1])
kinds = [rng.choice(sys.argv[2].split(",")) if rng.random() < float(sys.argv[3]) else "good" for _ in range(60)]
pipeline = monitel_otlp.configure(service_name="train", export_interval=3600.0, spool_dir="spool")
monitel.emit("newest")
assert pipeline.force_flush(30)
for number, kind in enumerate(kinds):
    at = now - timedelta(hours=ages[kind], milliseconds=100 - number)
    data = {"number": number, "text": "x" * 70_000 if kind == "large" else kind}
    monitel.log_event(monitel.Event("event", at, data))
pipeline.shutdown()
account = pipeline.account()["logs"]
print(json.dumps([kinds, account.delivered, dict(account.dropped)]))
"""


@pytest.mark.parametrize(
    ("bad", "share", "through"),
    [("behind", "0.04", "loki"), ("old,large", "0.3", "loki"), ("behind,old,large", "0.4", "collector")],
)
def test_account_agrees_with_the_records_that_loki_has_stored(  # noqa: PLR0917  fixtures and parameters
    loki: Loki, python: Python, tmp_path: Path, request: pytest.FixtureRequest, bad: str, share: str, through: str
) -> None:
    """Stored records count as delivered, the others as rejected, whether Loki or a Collector answers."""
    (tmp_path / "train.py").write_text(RUN)
    backend: str = f"{loki.url}/otlp" if through == "loki" else request.getfixturevalue("collector")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"{backend}/v1/logs")
        kinds, delivered, dropped = json.loads(python("train.py", f"{bad} {share}", bad, share).stdout)
    good = [str(number) for number, kind in enumerate(kinds) if kind == "good"]
    records = loki.records(hours=30)
    assert good == [each.attributes["number"] for each in records if each.line == "event"]
    assert (len(records), {"rejected": len(kinds) - len(good)}) == (delivered, dropped)
