"""The command ``monitel`` in this process."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points
from typing import NamedTuple

from tqdm import tqdm


class Printed(NamedTuple):
    status: int
    stdout: str
    stderr: str

    @property
    def last(self) -> str:
        return self.stdout.splitlines()[-1]

    def sections(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for line in self.stdout.splitlines():
            if not line.startswith(" "):
                rows = found.setdefault(line, {})
                continue
            name, value = line[2:20].strip(), line[21:]
            rows[name] = f"{rows[name]}\n{value}" if name in rows else value
        return found


Program = Callable[..., Printed]  # type of the fixture ``program``


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
