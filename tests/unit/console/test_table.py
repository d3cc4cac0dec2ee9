"""The table of ``monitel top``, its lines, the usage of processes, and their state in the kernel."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.nvml import FakeNvml
from tests.unit.console.made_processes import START as NOW
from tests.unit.console.made_processes import S, alive

from monitel.blackbox.activity import Wait
from monitel.blackbox.process import this_process
from monitel.console import reader
from monitel.console.job import Job
from monitel.console.live import Look, UsageMeter
from monitel.console.reader import KernelState, explain_silence, kernel_state
from monitel.console.top import COLUMNS, View, fitting, table_of
from monitel.console.verdict import Verdict
from monitel.runs.process import JobName, PastEvent, Process, State
from monitel.text import UNLIMITED, columns_of

JOB = JobName("", "llm", "run-7")
HEALTHY = Verdict("healthy", "healthy: all 4 ranks make progress, 8.25 steps/s")


def rank_of(number: int | None, **changes: Any) -> Process:
    usual: dict[str, Any] = {"job": JOB, "world_size": 4, "seen_ns": NOW, "rate": 8.25, "activity": "step"}
    return alive(number, **{**usual, **changes})


def dead_rank(number: int, **changes: Any) -> Process:
    return rank_of(number, state=State.DEAD, death="killed by SIGKILL", **changes)


def waiting_rank(number: int, key: str = "all_reduce", **changes: Any) -> Process:
    return rank_of(number, waits=(Wait(key, 5 * S),), **changes)


def look_at(*ranks: Process, verdict: Verdict = HEALTHY) -> Look:
    names = dict.fromkeys(rank.job for rank in ranks)
    jobs = [Job(name, None, tuple(rank for rank in ranks if rank.job == name)) for name in names]
    for job in jobs:
        job.verdict = verdict
    return Look(NOW, tuple(jobs))


def lines_of(look: Look, width: int = 200) -> list[str]:
    titles, lines = table_of(look, View(), width)
    texts = ("".join(text for text, _ in line.parts) for line in lines)
    return ["".join(text for _, text in titles), *(each for text in texts for each in text.split("\n"))]


def order(look: Look, view: View) -> list[int | None]:
    return [row.process.rank for job in look.jobs for row in view.rows(job, NOW)]


def test_order_follows_a_column() -> None:
    """A column has a usual direction, and choosing it again reverses it; unknown values come last, and a NaN first."""
    rates = 2.0, None, 9.0, float("nan")
    look, view = look_at(*(rank_of(rank, rate=rate) for rank, rate in enumerate(rates))), View()
    assert [0, 1, 2, 3] == order(look, view)
    for column, ranks in (("rate", [3, 2, 0, 1]), ("rate", [0, 2, 3, 1]), ("rank", [0, 1, 2, 3])):
        view.sort_by(column)
        assert ranks == order(look, view)


def test_filter_leaves_rows_that_contain_its_text() -> None:
    other = rank_of(9, job=JobName("", "vision", ""))
    look = look_at(rank_of(0), dead_rank(1), waiting_rank(2, "Barrier"), other)
    for text, ranks in {"KILLED": [1], "barr": [2], "vision": [9], "rank 2": [2], "n04": [0, 1, 2, 9]}.items():
        assert ranks == order(look, View(filter=text)), text


def test_narrow_screens_leave_out_the_less_important_columns() -> None:
    """The rank, its state and its step are the last to go. Columns of GPUs are there if a process uses one."""
    rows = View().rows(look_at(rank_of(0)).jobs[0], NOW)
    everywhere = [column.name for column in COLUMNS if not column.optional]
    state = ["rank", "state"]
    for width, names in (
        (UNLIMITED, everywhere), (50, [*state, "step", "rate", "waiting"]), (12, state), (1, ["rank"])
    ):  # fmt: skip
        assert names == [column.name for column in fitting(rows, width)]
    assert "GPU MEM" in lines_of(look_at(rank_of(0, gpu_memory=3 << 30)))[0]


TEXTS = st.text(max_size=30)


@settings(max_examples=25)
@given(TEXTS, TEXTS, TEXTS, st.integers(20, 220))
def test_lines_fit_into_the_screen(key: str, name: str, death: str, width: int) -> None:
    """Names of any characters, wide ones included, are escaped, and take no more columns than there are."""
    row = waiting_rank(1, key, activity=name, event=PastEvent(NOW, 9, name, {}), host=name)
    verdict = Verdict("stuck", f"stuck: {key} {death}")
    for line in lines_of(look_at(row, dead_rank(0, job=JobName("", name, "")), verdict=verdict), width):
        assert columns_of(line.rstrip()) <= width
        assert line.isprintable()


def test_usage_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with the same id and another start is not the one of the box, and has no usage."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    owner = this_process()
    mine = Process(box=Path("mine"), owner=owner)
    other = Process(box=Path("other"), owner=owner._replace(start=f"{int(owner.start) + 1}"))
    meter = UsageMeter()
    assert [None, None] == [each.cpu for each in meter.read([mine, other])]
    begun = os.times()
    while os.times().user - begun.user < 0.1:
        pass
    used, unknown = meter.read([mine, other])
    assert (other, True) == (unknown, used.cpu is not None and used.memory is not None)
    assert 0 < (used.cpu or 0) < 64
    assert 1 << 20 < (used.memory or 0) < 1 << 40


def test_usage_of_gpus_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """The busiest GPU counts, and the memory on all of them; one that does not answer causes no error."""
    mine, nvml = Process(pid=os.getpid(), owner=this_process()), FakeNvml()
    nvml.failing["nvmlDeviceGetUtilizationRates", nvml.GPUS[3]] = nvml.NVML_ERROR_NOT_SUPPORTED
    used = SimpleNamespace(pid=os.getpid(), usedGpuMemory=1 << 30)
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: [used], raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [(0.22, 3 << 30)] == [(each.gpu, each.gpu_memory) for each in UsageMeter().read([mine])]
    del nvml.nvmlInit
    assert [(None, None)] == [(each.gpu, each.gpu_memory) for each in UsageMeter().read([mine])]


def test_state_in_the_kernel_is_read_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the place in the kernel; 100 ticks in user mode and 50 in the kernel."""
    fields = {"7": ["D", *["1"] * 10, "100", "50", *["1"] * 6, "4711", "1"]}
    monkeypatch.setattr(reader, "kernel_fields", lambda pid: fields.get(pid, []))
    monkeypatch.setattr(reader, "content_of", {Path("/proc/7/wchan"): "nfs_wait_bit"}.get)
    state = kernel_state("7", "4711")
    assert KernelState("D", "nfs_wait_bit", 150 * 10**9 // os.sysconf("SC_CLK_TCK")) == state
    assert "cannot be interrupted (state D in nfs_wait_bit)" in explain_silence(7, state)[0]
    assert "a debugger has stopped the process" in explain_silence(7, KernelState("t", "", 0))[0]
    assert [None, None] == [kernel_state("7", "4712"), kernel_state("8", "4711")]
