"""The next thing to do about a verdict: a sentence for each kind in docs/reference/verdicts.md, and a command."""

from __future__ import annotations

from monitel.console.job import Job
from monitel.console.outcome import record_command
from monitel.console.verdict import is_overdue
from monitel.runs.history import RunTime
from monitel.runs.shares import largest_overhead, parts_of, sentences

_AUTOPSY = "monitel autopsy"  # of processes that run
_MUCH, _MUCH_NS = 10, 60 * 10**9  # percent of the time, and time, from which an overhead is worth a remedy
_LOADER = "more workers for the loader, faster storage, or a copy on the local disk"
_SAVE_LESS = "longer intervals, the local disk first, or torch.distributed.checkpoint.async_save()"

_OVERDUE = "Look again in a minute: without a step until then it hangs. The stacks show what it does now:"
_FEW = "It has made too few steps for a verdict: look again later."
_SHORT = "Nothing needs to be done: it was too short for a verdict."
_INCOMPLETE = "What is recorded shows no fault. The line above says what is missing for a verdict."
_BY_KIND = {
    "failed": ("Read the exception below, or else the end of its output. The first failure is usually the cause.", ""),
    "ended": ("Read the end of its output. This in front of the command records its exit status:", "monitel run --"),
    "silent": ("See what the kernel knows about it, for instance the signal that has stopped it:", _AUTOPSY),
    "stuck": ("Look at the stack of the rank that the others wait for: it has the line.", _AUTOPSY),
    "paused": ("A pause ends by itself. If it is too long: longer intervals, less data, or a separate job.", ""),
    "no-steps": ("The stacks show whether a rank hangs, or evaluates outside of an activity.", _AUTOPSY),
    "starting": ("Ranks in init wait for those that are not in it yet: look at these.", _AUTOPSY),
    "diverged": ("Lower the learning rate, clip gradients, or look at the batch in which this begins.", ""),
    "compile-storm": ("Mark the shapes that change as dynamic, or pad batches. torch.recompile has the reason.", ""),
    "input-bound": (f"The loader is slower than the step: {_LOADER}.", ""),
    "checkpoint-bound": (f"Make checkpoints cheaper: {_SAVE_LESS}.", ""),
    "unknown": ("Record each step with its number, for instance by run.log(loss=loss, step=step).", ""),
    "healthy": ("Nothing needs to be done. To compare it with other runs, see their names:", "monitel runs"),
}
#: What to look at on a late rank, by the stage.
_BY_STAGE = {
    "data": f"Compare its disk, its CPUs and its samples with those of other ranks. Often helpful: {_LOADER}.",
    "forward": "Look at temperature, power and clock of its GPU, and at the lengths of its batches.",
    "backward": "Look at temperature, power and clock of its GPU, and at gradient hooks that only it has.",
    "optimizer": "Look for values that it moves to the host, such as clipped norms, and at the memory of its host.",
    "other": "Look at its code between optimizer.step() and the next batch: it may log, evaluate or save for all.",
}
_REMEDIES = {
    "data": _LOADER,
    "startup": "a local environment, or data sets that are prepared before",
    "init": "look for the rank that comes late, with the shortest init",
    "compile": "mark the shapes that change as dynamic, or pad batches",
    "checkpoint.save": _SAVE_LESS,
    "checkpoint.load": "a sharded checkpoint, or read it once and broadcast it",
    "evaluation": "longer intervals, a part of the data, or a separate job",
    "repeated": "more frequent checkpoints, because half an interval is repeated per failure on average",
    "down": "automatic restarts, or spare nodes",
}


def advice(job: Job, time: RunTime | None) -> tuple[str, str]:
    """Return a sentence about the verdict, and a command that can be pasted; empty if there is none."""
    found = job.verdict
    if found.kind == "dead":
        command = next(filter(None, map(record_command, job.deaths)), "")
        record = "its record" if command else "the event process.died"
        return f"Look at what it was doing, below; {record} has its waits and its last events, too.", command
    if found.kind == "late-rank":
        return _BY_STAGE.get(found.stage, "Compare a profile of this rank with one of another rank."), ""
    if is_overdue(job):
        return _OVERDUE, _AUTOPSY
    if found.kind == "healthy" and time is not None and (overhead := largest_overhead(parts_of(time.activities))):
        remedy = _REMEDIES.get(overhead.name)
        if remedy and overhead.percent >= _MUCH and overhead.time_ns >= _MUCH_NS:
            return f"The steps are fine, but {sentences(time)[0]}: {remedy}.", ""
    text, command = _BY_KIND[found.kind]
    if found.kind == "unknown" and job.stepping:
        text = _INCOMPLETE if job.measured else _SHORT if job.over else _FEW
    if command != _AUTOPSY:
        return text, command
    pids = [f" {each.pid}" for each in job.running if each.pid and each.rank == found.rank is not None]
    return text, "" if job.over else "".join([command, *pids[:1]])
