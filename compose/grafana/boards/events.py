"""The board ``monitel / Events and traces``, from Loki and Tempo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.panels import board, log_counts, log_lines, traces
from boards.variables import JOB, RUNS

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard

NOT_RUN = "This query follows the documentation of {}; unlike those to Prometheus, no test has run it."


def make() -> dashboard.Dashboard:
    """Return the board of events (Loki) and spans (Tempo)."""
    chosen = '{service_name=~"$job"} | training_run_id=~"$run"'
    named = f"{chosen} | scope_name=`monitel` | label_format event=`{{{{__line__}}}}`"  # monitel's lines are names
    shown = (
        "| line_format `{{__line__}}{{if .training_rank}} rank={{.training_rank}}{{end}}"
        "{{if .training_step}} step={{.training_step}}{{end}}`"
    )
    loki, tempo = NOT_RUN.format("Loki"), NOT_RUN.format("Tempo")
    spans = 'resource.service.name=~"$job"'  # TraceQL's ".*" does not match a span without a run
    return board(
        "events",
        "monitel / Events and traces",
        f"What happened, and when. {NOT_RUN.format('Loki and Tempo')}",
        [JOB, RUNS],
        {
            "Events": [
                log_counts(
                    "Events by name",
                    f"How many of each. {loki}",
                    f"sum by (event) (count_over_time({named} [$__auto]))",
                    "{{event}}",
                ),
                log_lines(
                    "Warnings and errors", f"Severity WARN and above. {loki}", f"{chosen} | severity_number>=13 {shown}"
                ),
                log_lines("All events", f"Open one to see its attributes. {loki}", f"{chosen} {shown}"),
            ],
            "Traces": [
                traces("Slow spans", f"Longer than a second, of all runs. {tempo}", f"{{ {spans} && duration > 1s }}"),
                traces("All spans", f"The newest, of all runs. {tempo}", f"{{ {spans} }}"),
            ],
        },
    )
