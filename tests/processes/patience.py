"""More than two seconds for the exit and for SIGTERM, for scripts whose delivery must not depend on the machine.

With MONITEL_STRICT_LIMITS=1, as ``.ci/nightly`` runs tests with the marker ``timed``, they have the two seconds.
"""

import os

from tests.support.checks import EXIT
from tests.support.inbox import DEADLINE

STRICT = os.environ.get("MONITEL_STRICT_LIMITS") == "1"
#: Seconds in which a process must end.
IN_TIME = EXIT if STRICT else DEADLINE
#: Seconds beside a backend that accepts everything, where the exit ends earlier, and beside any other one.
LONG, SHORT = 60.0, 5.0

#: Without braces, so that scripts may be formatted.
_LINES = """\
import sys
import monitel.process.exit
import monitel_otlp.pipeline
monitel_otlp.Pipeline.shutdown.__defaults__ = (SECONDS,)
for _name in ("process.exit", "started_run"):  # the limit has no public name
    if (_module := sys.modules.get("monitel." + _name)) is not None:
        _module.EXIT_TIMEOUT = SECONDS
if (_module := sys.modules.get("monitel_otlp.configuration")) is not None:
    _module.EXIT_TIMEOUT = SECONDS
"""


def patience(seconds: float = LONG) -> str:
    """Return the lines that give the process of a script so many seconds for its exit."""
    return "" if STRICT else _LINES.replace("SECONDS", str(seconds))


def with_patience(script: str, seconds: float = LONG) -> str:
    return patience(seconds) + script
