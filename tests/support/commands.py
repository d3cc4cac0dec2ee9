"""The command ``monitel`` in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points
from typing import NamedTuple

from tqdm import tqdm


class Printed(NamedTuple):
    status: int
    output: str
    errors: str


def command(*arguments: object) -> Printed:
    (script,) = entry_points(group="console_scripts", name="monitel")
    output, errors = io.StringIO(), io.StringIO()
    tqdm.monitor_interval = 0  # it starts no thread
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            status = script.load()([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code
    return Printed(status, output.getvalue(), errors.getvalue())
