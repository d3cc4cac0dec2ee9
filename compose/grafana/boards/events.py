"""The board ``monitel / Events and traces``, from Loki and Tempo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boards.panels import board, log_counts, log_lines, traces
from boards.queries import CHOSEN_RECORDS, OF_SERVICE, SERVICE
from boards.variables import SELECTION

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard

NOT_RUN = "This query follows the documentation of Tempo; unlike the others, no test has run it."


def make() -> dashboard.Dashboard:
    """Return the board of events (Loki) and spans (Tempo)."""
    events = f'{CHOSEN_RECORDS} !~ "^[{{]"'  # without those of log() and config(), whose lines are JSON
    named = f"{events} | scope_name=`monitel` | label_format event=`{{{{__line__}}}}`"  # monitel's lines are names
    shown = (
        "| line_format `{{__line__}}{{if .training_rank}} rank={{.training_rank}}{{end}}"
        "{{if .training_step}} step={{.training_step}}{{end}}`"
    )
    spans = 'resource.service.name="$service"'  # TraceQL's ".*" does not match a span without a run or namespace
    return board(
        "events",
        "monitel / Events and traces",
        "What happened, and when.",
        SELECTION,
        {
            "Events": [
                log_counts(
                    "Events by name",
                    "How many of each.",
                    f"sum by ({OF_SERVICE}, event) (count_over_time({named} [$__auto]))",
                    f"{SERVICE} {{{{event}}}}",
                ),
                log_lines("Warnings and errors", "Severity WARN and above.", f"{events} | severity_number>=13 {shown}"),
                log_lines("All events", "Open one to see its attributes.", f"{events} {shown}"),
                log_lines(
                    "Logged numbers and configuration",
                    "As JSON, of monitel.log() and monitel.config().",
                    f'{CHOSEN_RECORDS} |~ "^[{{]" {shown}',
                ),
            ],
            "Traces": [
                traces(
                    "Slow spans",
                    f"Longer than a second, of all runs and namespaces. {NOT_RUN}",
                    f"{{ {spans} && duration > 1s }}",
                ),
                traces("All spans", f"The newest, of all runs and namespaces. {NOT_RUN}", f"{{ {spans} }}"),
            ],
        },
    )
