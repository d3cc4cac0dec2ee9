"""One run from its ledger, its stored values, and the telemetry that is not delivered."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from monitel.console.compare.run import Number, Run, internal_metrics, looping_seconds
from monitel.console.values.stored import limited_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.compare.evidence import Process
    from monitel.console.ledger.reading import StoredRun
    from monitel.console.values.run_values import Key, RunValues, Scalar

_ALIVE_NS = 10 * 10**9  # a run with a younger heartbeat is running
_COMPLETED, _RUNNING = "completed", "running"


def is_complete(stored: StoredRun | None) -> bool:
    """Return True if the files of a run suffice: it has completed, and its values are stored."""
    return stored is not None and stored.time.ended and stored.values is not None and stored.values.status == _COMPLETED


def is_last_attempt(process: Process, stored: StoredRun) -> bool:
    """Return True for the process of the last attempt in a ledger.

    Process ids repeat: in containers every attempt may have the id 1. So the process must have lived in that attempt.
    """
    has_its_id = stored.last.name.endswith(f"-{process.pid}")
    return has_its_id and not process.rank and process.last_ns >= stored.attempt_start_ns


def assemble(label: str, source: str, stored: StoredRun | None, processes: Sequence[Process]) -> Run:
    """Return a run.

    Args:
        label: The name of the run.
        source: Where the numbers are from, in words.
        stored: Its files; None if there are none.
        processes: Its processes whose telemetry was found, of all ranks and attempts.
    """
    first = _of_first_rank(processes)
    if stored is None:
        return _from_telemetry(label, source, first, processes)
    values, run_time = stored.values, stored.time
    whole, timed = None, _timed(first)
    if values is not None:
        own = [each for each in first if is_last_attempt(each, stored)]
        whole = values.before.plus(values.progress.until(_last_step(own)))
        by_ledger = values.before.steps + values.progress.steps, looping_seconds(run_time.activities)
        timed = (whole.timed, whole.seconds) if whole.timed else by_ledger
    return Run(
        label=label,
        source=source,
        outcome=_stored_outcome(stored, processes),
        started_ns=run_time.start_ns,
        last_ns=run_time.last_ns,
        attempts=run_time.attempts,
        activities=run_time.activities,
        goodput=run_time.goodput,
        steps=_made(first) if whole is None else whole.steps or None,
        last_step=stored.last.last_step if whole is None else whole.last_step,
        timed=timed,
        numbers=_numbers(stored, first),
        config=_config(values, first),
        attributes=_attributes(first) if values is None else values.attributes,
        left_out=0 if values is None else values.left_out,
    )


def _from_telemetry(label: str, source: str, first: Sequence[Process], processes: Sequence[Process]) -> Run:
    activities: defaultdict[str, int] = defaultdict(int)
    for process in first:
        for name, (_, seconds) in process.activities.items():
            activities[name] += round(seconds * 1e9)
    elapsed_ns = sum(activities.values())
    started = [each.started_ns for each in first if each.started_ns]
    return Run(
        label=label,
        source=source,
        outcome=_found_outcome(first, processes),
        started_ns=min(started, default=None),
        last_ns=max((each.last_ns for each in first if each.last_ns), default=None),
        attempts=len(first) or None,
        activities=dict(activities),
        goodput=activities["step"] / elapsed_ns if activities.get("step") else None,
        steps=_made(first),
        last_step=_last_step(first),
        timed=_timed(first),
        numbers=_numbers(None, first),
        config=_config(None, first),
        attributes=_attributes(first),
    )


def _of_first_rank(processes: Sequence[Process]) -> list[Process]:
    """Return the processes of rank zero, or of the lowest rank of which telemetry was found: the oldest first."""
    lowest = min((each.rank or 0 for each in processes), default=0)
    return sorted((each for each in processes if (each.rank or 0) == lowest), key=lambda each: each.last_ns)


def _numbers(run: StoredRun | None, first: Sequence[Process]) -> dict[Key, Number]:
    """Return the last values: gauges by their time, totals as they are stored, otherwise added up over the attempts."""
    values = None if run is None else run.values
    found: dict[Key, Number] = {}
    times: dict[Key, int] = {}
    before_attempt: dict[Key, float] = {}
    for value in () if values is None else values.values:
        found[value.key], times[value.key] = Number(value.value, value.unit, value.total), value.time_ns
        before_attempt[value.key] = value.before
    stored = frozenset(found)
    for process in first:
        is_last = run is not None and is_last_attempt(process, run)
        for key, (time_ns, number) in process.gauges.items():
            if time_ns >= times.get(key, 0):
                found[key], times[key] = number, time_ns
        for key, (time_ns, number) in process.totals.items():
            if key not in stored:
                before = found[key].value if key in found else 0
                found[key] = number._replace(value=before + number.value)
            elif is_last and time_ns > times[key]:
                found[key], times[key] = number._replace(value=before_attempt[key] + number.value), time_ns
    hidden = {"training.step", *internal_metrics({name for name, _ in found})}
    return {key: number for key, number in found.items() if key[0] not in hidden}


def _config(values: RunValues | None, first: Sequence[Process]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for process in first:
        found.update((name, limited_text(each)) for name, each in process.config.items())
    return found if values is None else {**found, **values.config}


def _attributes(first: Sequence[Process]) -> dict[str, Scalar]:
    return {name: limited_text(each) for name, each in first[-1].attributes.items()} if first else {}


def _made(first: Sequence[Process]) -> int | None:
    made = [each.made for each in first if each.made is not None]
    return sum(made) if made else None


def _last_step(first: Sequence[Process]) -> int | None:
    return next((each.step for each in reversed(first) if each.step is not None), None)


def _timed(first: Sequence[Process]) -> tuple[int, float]:
    counts, seconds = zip(*(each.timed for each in first), strict=True) if first else ((), ())
    return sum(counts), sum(seconds)


def _stored_outcome(stored: StoredRun, processes: Sequence[Process]) -> str:
    values, run_time = stored.values, stored.time
    deaths = _deaths(processes, stored.attempt_start_ns)
    if run_time.ended:
        status = (values.status if values is not None else "") or _status(processes) or "ended"
        return status if status == _COMPLETED else _joined(status, deaths)
    if abs(time.time_ns() - run_time.last_ns) < _ALIVE_NS and not _has_died(stored, processes):
        return _joined(_RUNNING, deaths)
    return deaths or "killed or hung"


def _has_died(stored: StoredRun, processes: Sequence[Process]) -> bool:
    """Return True if the last process of the ledger has died a moment ago."""
    return any(each.death for each in processes if is_last_attempt(each, stored))


def _found_outcome(first: Sequence[Process], processes: Sequence[Process]) -> str:
    deaths = _deaths(processes, first[-1].started_ns if first else 0)
    status = _RUNNING if any(each.alive for each in first) else _status(first)
    return _joined(status, deaths) if status else deaths or "unknown"


def _status(processes: Sequence[Process]) -> str:
    """Return the status of the process that ended last; empty if none has ended by itself."""
    ended = [each for each in processes if each.status]
    return max(ended, key=lambda each: each.last_ns).status if ended else ""


def _joined(status: str, deaths: str) -> str:
    return f"{status}; {deaths}" if deaths else status


def _deaths(processes: Sequence[Process], since_ns: int) -> str:
    """Return the first death since the start of the last attempt, Unix ns, in words; empty if there is none."""
    dead = [each for each in processes if each.death and each.last_ns >= since_ns]
    if not dead:
        return ""
    first = min(dead, key=lambda each: each.last_ns)
    rank = "" if first.rank is None else f"rank {first.rank} "
    more = f", and {len(dead) - 1:,} more" if len(dead) > 1 else ""
    return f"{rank}{first.death}{more}"
