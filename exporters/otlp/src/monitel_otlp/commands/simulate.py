"""Simulation of a training job: one process with a pipeline for each rank, started and followed from here."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from multiprocessing import connection, get_all_start_methods, get_context
from typing import TYPE_CHECKING

from tqdm import tqdm

from monitel_otlp.commands.simulated_rank import run_rank
from monitel_otlp.commands.simulation import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel_otlp.commands.simulation import Simulation

RANKS_PER_NODE = 8


def simulate(simulation: Simulation) -> tuple[list[Report], bool]:
    """Run all ranks to their end. At Ctrl-C they stop recording, deliver what they have recorded, and end.

    Call it in the main thread. The ranks are forked from a process that has imported every module and started
    nothing. Each rank gets its environment variables from here, as from a launcher.

    Returns:
        The report of each rank that did not die, and whether Ctrl-C was pressed.

    Raises:
        ValueError: The machine cannot start so many processes, or the platform has no ``fork()``.
    """
    if "forkserver" not in get_all_start_methods():
        raise ValueError("simulate needs fork(), by which it starts the ranks: this platform does not have it")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    begin_ns = time.time_ns()
    run_id = time.strftime(f"simulate-%Y%m%d-%H%M%S-{os.getpid()}")
    running, stop = context.Pipe(duplex=False)  # the ranks run until stop is closed
    ends = []
    with _closed_by_ctrl_c(stop):
        for rank in range(simulation.ranks):
            environment = {**os.environ, **_launcher_variables(simulation, rank, run_id)}
            try:
                ours, theirs = context.Pipe(duplex=False)
                arguments = (simulation, rank, environment, begin_ns)
                ends_of_pipes = {"running": running, "parent": theirs}
                context.Process(target=run_rank, args=arguments, kwargs=ends_of_pipes, daemon=True).start()
            except OSError as error:
                raise ValueError(f"rank {rank} of {simulation.ranks} cannot be started here: {error}") from error
            theirs.close()
            ends.append(ours)
        return _follow(simulation, ends), stop.closed


def _launcher_variables(simulation: Simulation, rank: int, run_id: str) -> dict[str, str]:
    """Return the variables that torchrun would set on nodes with eight ranks."""
    return {
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % RANKS_PER_NODE),
        "WORLD_SIZE": str(simulation.ranks),
        "GROUP_RANK": str(rank // RANKS_PER_NODE),
        "OTEL_SERVICE_NAME": os.environ.get("OTEL_SERVICE_NAME", "monitel-simulate"),
    }


@contextmanager
def _closed_by_ctrl_c(stop: connection.Connection) -> Iterator[None]:
    """Close a connection at the first Ctrl-C; the second one raises KeyboardInterrupt.

    A terminal sends SIGINT to all processes. The fork server starts with SIGINT ignored, and its children inherit that.
    """

    def close(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop.close()

    from multiprocessing import forkserver  # late: platforms without fork() cannot import it

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, close)
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(simulation: Simulation, ends: list[connection.Connection]) -> list[Report]:
    """Show the progress of all ranks, and return their reports, sorted by rank."""
    reports = []
    with tqdm(total=simulation.ranks * simulation.windows, unit="window", desc="all ranks", disable=None) as progress:
        while ends:
            for end in connection.wait(ends):
                assert isinstance(end, connection.Connection)
                try:
                    received = end.recv()
                except EOFError:  # the rank has ended, after its report or by a crash
                    ends.remove(end)
                    continue
                if isinstance(received, Report):
                    reports.append(received)
                else:
                    progress.update()
    return sorted(reports, key=lambda report: report.rank)
