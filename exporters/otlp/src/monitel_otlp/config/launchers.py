"""Programs that start the processes of a training job. It imports only the standard library."""

from __future__ import annotations

import os
import re

#: Programs and modules that start training processes, forward SIGTERM to them, and record no telemetry.
LAUNCHERS = {
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    *("accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("fabric", "lightning", "lightning.fabric.cli", "lightning_fabric.cli"),
}

_MODULE = re.compile(r"-[bBdEhiIOPqsSuvx]*m(.*)", re.DOTALL)


def is_launcher(arguments: list[str]) -> bool:
    """Return True if a command line starts a launcher of training processes, such as torchrun's agent.

    Args:
        arguments: The interpreter and its arguments, as in ``sys.orig_argv``.
    """
    remaining = iter(arguments[1:])
    for argument in remaining:
        if argument in {"-X", "-W"}:
            next(remaining, None)
        elif module := _MODULE.fullmatch(argument):
            return (module[1] or next(remaining, "")) in LAUNCHERS
        elif not argument.startswith("-") or argument == "-":
            return os.path.basename(argument) in LAUNCHERS
        elif argument.startswith("-c"):
            return False
    return False
