"""Log records that Loki refuses, and old ones that it accepts."""

import json
from pathlib import Path

import pytest
from tests.integration.conftest import Loki
from tests.support.checks import wait_until
from tests.support.scripts import Run

RUN = """\
import json, random
from datetime import datetime, timedelta, timezone

now, epoch = datetime.now(timezone.utc), datetime(1970, 1, 1, tzinfo=timezone.utc)
ages = {"late": 23, "behind": 26, "old": 24 * 40}
times = []
rng = random.Random(sys.argv[1])
kinds = [rng.choice(sys.argv[2].split(",")) if rng.random() < float(sys.argv[3]) else "good" for _ in range(60)]
pipeline = monitel_otlp.configure(service_name="train", export_interval=3600.0, spool_dir="spool")
monitel.emit("wide", **{f"key.{each}": each for each in range(128)})
assert pipeline.force_flush(30)
for number, kind in enumerate(kinds):
    at = now - timedelta(hours=ages.get(kind, 0), milliseconds=100 - number)
    times.append((at - epoch) // timedelta(microseconds=1))
    data = {"number": number, "text": "x" * 70_000 if kind == "large" else kind}
    if kind == "long":
        monitel.config({"text": "x" * 270_000})
    else:
        monitel.log_event(monitel.Event("event", at, data))
pipeline.shutdown()
account = pipeline.account()["logs"]
print(json.dumps([kinds, times, account.delivered, dict(account.dropped)]))
"""
REASONS = {"large": "structured metadata too large", "long": "max entry size", "old": "too old"}


@pytest.mark.parametrize(
    ("bad", "share", "through"),
    [("behind", "0.04", "loki"), ("late,old,large,long", "0.3", "loki"), ("behind,old,large", "0.4", "collector")],
)
def test_account_agrees_with_the_records_that_loki_has_stored(  # noqa: PLR0917  fixtures and parameters
    loki: Loki, train: Run, tmp_path: Path, request: pytest.FixtureRequest, bad: str, share: str, through: str
) -> None:
    """Stored records count as delivered, the others as rejected, whether Loki or a Collector answers.

    A record that is up to 24 hours older than others is stored with its time. A refused record is set aside, and its
    reason is logged. A record with as many attributes as there may be is stored.
    """
    from tests.support.spools import rejected_in

    backend: str = f"{loki.url}/otlp" if through == "loki" else request.getfixturevalue("collector")
    done = train(RUN, f"{bad} {share}", bad, share, env={"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{backend}/v1/logs"})
    kinds, times, delivered, dropped = json.loads(done.stdout)
    good = {(1000 * at, str(number)) for number, at in enumerate(times) if kinds[number] in {"good", "late"}}
    wait_until(lambda: delivered == len(loki.records(hours=30)), "the delivered records are found")
    records = loki.records(hours=30)
    assert sorted(good) == [(each.time_ns, each.attributes["number"]) for each in records if each.line == "event"]
    assert (len(records), {"rejected": len(kinds) - len(good)}) == (delivered, dropped)
    (wide,) = (each for each in records if each.line == "wide")
    assert {str(number) for number in range(128)} == {wide.attributes[f"key_{number}"] for number in range(128)}
    refused = [each for each in rejected_in(tmp_path) for each in each.resource_logs[0].scope_logs[0].log_records]
    assert len(refused) >= len(kinds) - len(good)  # some stored ones may be beside them
    for kind in {*kinds} & {*REASONS} if through == "loki" else ():
        assert REASONS[kind] in done.stderr.lower(), kind
