"""Each service is stopped, killed or paused while a run goes on: afterwards everything is stored."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conftest import Loki, Stack
from tests.integration.services import Program
from tests.integration.training import check, check_events, training


@pytest.mark.parametrize(
    ("service", "disturb"),
    [("otelcol", Program.kill), ("otelcol", Program.pause), ("prometheus", Program.stop), ("loki", Program.pause)],
)
def test_everything_is_stored_after_an_outage(
    stack: Stack, loki: Loki, service: str, disturb: Callable[[Program], None], tmp_path: Path
) -> None:
    """Each window and each event is there once, with its values, each span too, and nothing was dropped."""
    env = {**stack.variables, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}  # a pause need not last longer than 10 s
    with training(tmp_path, env) as under_way:
        under_way.until(lambda: arrived(stack, loki), "nothing has arrived")
        disturb(stack.programs[service])
        try:
            under_way.go_on(4)
            under_way.until(lambda: "everything is kept" in under_way.stderr, "the outage was not noticed")
        finally:
            stack.programs[service].restore()
        run = under_way.end()
    numbers = {"metrics": len(run.windows), "logs": len(run.events), "traces": len(run.checkpoints)}
    assert ({}, {signal: [number, number] for signal, number in numbers.items()}) == (run.dropped, run.accounts)
    check(stack.prometheus, run)
    check_events(loki, run)
    assert len(run.checkpoints) == len({each.span_id for each in stack.receiver.spans() if each.name == "epoch"})


def arrived(stack: Stack, loki: Loki) -> bool:
    return bool(stack.prometheus.values("train_loss_count_total") and loki.records())
