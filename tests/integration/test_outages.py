"""Each service is stopped, killed, paused or cut off while a run goes on: afterwards everything is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .training import check, training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Stack

pytestmark = pytest.mark.integration


def fault(stack: Stack, service: str, kind: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the function that breaks a service, and the one that restores it."""
    program, wire = stack.programs[service], stack.wires[service]
    return {
        "stop": (program.stop, program.start),
        "kill": (program.kill, program.start),
        "pause": (program.pause, program.resume),
        "cut": (wire.cut, wire.mend),
    }[kind]


@pytest.mark.parametrize("kind", ["stop", "kill", "pause", "cut"])
@pytest.mark.parametrize("service", ["otelcol", "prometheus"])
def test_everything_is_stored_after_an_outage(stack: Stack, service: str, kind: str, tmp_path: Path) -> None:
    """Each window is there with its value, each event was forwarded, and nothing was dropped."""
    break_it, mend_it = fault(stack, service, kind)
    environment = {**stack.environment, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}  # a pause need not last longer than 10 s
    with training(tmp_path, environment) as under_way:
        under_way.until(lambda: stack.prometheus.query("train_loss_count_total"), "nothing has arrived")
        break_it()
        try:
            under_way.go_on(4)
            under_way.until(lambda: "everything is kept" in under_way.stderr, "the outage was not noticed")
        finally:
            mend_it()
        run = under_way.end()
    assert {} == run.dropped
    check(stack.prometheus, run)
    numbers = [record.attributes["number"] for record in stack.receiver.records("checkpoint")]
    assert run.checkpoints == list(dict.fromkeys(numbers))  # delivery is at least once
