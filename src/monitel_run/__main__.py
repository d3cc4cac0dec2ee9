"""The program ``monitel``, also as ``python -m monitel_run``: it loads what its command needs, and no more."""

from __future__ import annotations

import os
import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command of ``monitel``, and return the exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are imported prints no traceback
    if arguments[:1] == ["run"]:
        return run(arguments[1:])
    from monitel.console.main import main  # late: `run` need not wait for it

    return main(arguments)


def run(arguments: list[str]) -> int:
    """Run ``monitel run``; return the exit status, unless the process ends like its command."""
    if hasattr(os, "fork") and hasattr(signal, "sigtimedwait"):
        from monitel_run.command import run  # late: it needs these functions

        return run(arguments)
    sys.stderr.write(
        "monitel: run needs fork() and sigtimedwait(), which this platform does not have. The command was not "
        "started: start it without monitel run, and call monitel_otlp.configure() in the script\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
