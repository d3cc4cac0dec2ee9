"""Commands of monitel-otlp: run a training job, examine killed processes, deliver what they have left, and more."""

from __future__ import annotations

import os
import signal
import sys

from monitel_otlp.commands.output import OutputError, check_stdout, finish, warn

_CTRL_C = 128 + signal.SIGINT  # the exit status that a shell reports


def main(arguments: list[str] | None = None) -> int:
    """Run one command, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["run"]:
        if not (hasattr(os, "fork") and hasattr(signal, "sigtimedwait")):
            warn(
                "run needs fork() and sigtimedwait(), which this platform does not have. The command was not started: "
                "start it without monitel run, and call monitel_otlp.configure() in the script",
                "monitel",
            )
            return 1
        from monitel_otlp.run.command import run  # late: the other commands load OpenTelemetry's SDK

        return run(arguments[1:])
    from monitel.blackbox.folder import FolderError
    from monitel_otlp.commands.parser import make_parser

    started_as_module = sys.argv[0].endswith("__main__.py")
    parser = make_parser("python -m monitel_otlp" if started_as_module else "monitel", __doc__ or "")
    parsed = parser.parse_args(arguments)
    try:
        check_stdout()
        status: int = parsed.run(parsed)
        finish()
    except BrokenPipeError:  # `cat DIR | head`
        _discard_output()
        return 0
    except (OutputError, FolderError, ValueError, OSError) as error:
        warn(error)
        if isinstance(error, OutputError):
            _discard_output()
        return 1
    except KeyboardInterrupt:
        warn(parsed.interrupted)
        return _CTRL_C
    return status


def _discard_output() -> None:
    """Write what is left to nowhere: Python flushes stdout at exit, which would fail."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
