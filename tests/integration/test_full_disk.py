"""The spool's disk is full: a small tmpfs, in a mount namespace that ends with the run."""

from __future__ import annotations

import re
import subprocess
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from tests.integration.training import check, check_events, train, training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Loki, Stack

    Python = Callable[..., subprocess.CompletedProcess[str]]

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
SCRIPT = 'mount -t tmpfs -o size=32k tmpfs spool && { "$@"; status=$?; cp -r spool/. left; exit $status; }'


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[str, ...]:
    """Return the prefix of a command that makes ``spool`` a disk of 32 KiB; ``left`` becomes its copy at the end."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "left").mkdir()
    wrapper = (*NAMESPACE, SCRIPT, "sh")
    try:
        subprocess.run([*wrapper, "true"], cwd=tmp_path, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no small disk: install util-linux, which has unshare")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no small disk: run as root, or allow unprivileged user namespaces ({error.stderr.strip()})")
    return wrapper


def test_what_the_disk_takes_is_replayed_and_the_rest_is_counted(
    stack: Stack, loki: Loki, small_disk: tuple[str, ...], python: Python, tmp_path: Path
) -> None:
    """At the exit with a dead backend: logged is stored or dropped, and totals are right in what is stored."""
    stack.programs["otelcol"].stop()
    run = train(tmp_path, epochs=16, environment={**stack.environment, "PATIENCE": "0"}, wrapper=small_disk)
    kept = int(re.findall(r"; (\d+) items? in ", run.stderr)[-1])
    epochs = len(run.checkpoints)
    assert len(run.windows) + 2 * epochs == kept + run.dropped["disk"]  # an event and a span each epoch
    assert min(kept, run.dropped["disk"]) > 0
    assert ["disk"] == list(run.dropped)
    assert 1 == run.stderr.count("cannot be written")

    stack.programs["otelcol"].start()
    python("-m", "monitel_otlp", "replay", "left", "--endpoint", stack.endpoint)
    stored = 0
    for name, series in [("train.loss", "train_loss"), ("step.time", "step_time")]:
        own = [each for each in run.windows if each["name"] == name]
        totals = accumulate(each["count"] for each in own)
        expected = {each["end_ns"] // 10**6: str(total) for each, total in zip(own, totals, strict=True)}
        found = [(at, total) for at, total in stack.prometheus.samples(f"{series}_count_total") if total != "0"]
        assert [(at, expected[at]) for at, _ in found] == found
        stored += len(found)
    events = {record.time_ns for record in loki.records("checkpoint")}
    assert events <= {each["time_ns"] for each in run.events}
    assert kept == stored + len(events) + len(stack.receiver.spans())


def test_a_full_disk_costs_nothing_when_the_backend_comes_back(
    stack: Stack, loki: Loki, small_disk: tuple[str, ...], tmp_path: Path
) -> None:
    """Requests that do not fit on the disk wait in memory, behind those on disk."""
    stack.programs["otelcol"].stop()
    environment = {**stack.environment, "SPOOL_AT_ONCE": "yes"}
    with training(tmp_path, environment, wrapper=small_disk) as under_way:
        under_way.until(lambda: "cannot be written" in under_way.stderr, "the disk is not full")
        under_way.go_on(3)
        stack.programs["otelcol"].start()
        run = under_way.end()
    assert {} == run.dropped
    check(stack.prometheus, run)
    check_events(loki, run)
