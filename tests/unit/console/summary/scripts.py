"""Scripts of jobs with known numbers."""

from __future__ import annotations

#: Steps 3 to 42 with known stages, as another training loop may record them.
TRAIN = """\
stages = {
    (name, stage): Stat(name, [MEAN], 60.0, unit="s", attributes={"training.stage": stage, "training.group": "first"})
    for name in ("training.stage.duration", "training.stage.device.duration") for stage in ("data", "forward")
}
step_time = Stat("training.step.duration", [MEAN, COUNT], 60.0, unit="s", monotonic=True)
for step in range(3, 43):
    monitel.set_step(step)
    for (name, stage), stat in stages.items():
        stat.add(step * (0.5 if stage == "data" else 0.25))
    step_time.add(0.125)
monitel.counter("training.steps").add(38)
monitel.counter("training.steps.skipped").add(2)
with monitel.activity("evaluation"):
    time.sleep(0.2)
"""
