"""Install the built files into empty environments without a compiler, and run ``smoke.py`` there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.release.build import run
from tools.release.distributions import CORE, EXPORTERS

if TYPE_CHECKING:
    from tools.release.pythons import Python

_TENSORBOARD_WITHOUT_GRPC = """
from importlib.metadata import requires
needed = (each for each in requires("tensorboard") if "extra" not in each and not each.startswith("grpcio"))
print(*(each.replace(" ", "") for each in needed))
"""


class Environment:
    """An empty environment of an interpreter, whose ``PATH`` has no other program."""

    def __init__(self, python: Python, folder: Path) -> None:
        run(python.executable, "-m", "venv", folder)
        self._folder = folder
        self._free_threaded = python.free_threaded
        self._python = folder / "bin/python"

    def run(self, *command: str | Path) -> str:
        """Run the interpreter where no compiler is found."""
        environment = {"PATH": str(self._folder / "bin"), "CC": "/bin/false", "CXX": "/bin/false", "PYTHONPATH": ""}
        environment["XDG_STATE_HOME"] = str(self._folder / "state")
        return run(self._python, *command, cwd=self._folder, env=environment)

    def pip(self, *arguments: str | Path) -> None:
        """Install without byte code, which takes longer than the rest."""
        self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *arguments)

    def install_core(self, files: Path) -> str:
        """Let pip choose the core's wheel among those in a folder; return the files that it installed."""
        self.pip("--no-index", "--find-links", files, "--no-deps", "--only-binary", ":all:", CORE.name)
        return self.run("-c", "from importlib.metadata import files; print(*files('monitel'))")

    def install_exporters(self, files: Path) -> None:
        """Install the wheels of the exporters, with the wheels of everything that they require."""
        wheels = {each.name: next(files.glob(f"{each.file_name}-*.whl")) for each in EXPORTERS}
        if not self._free_threaded:
            self.pip("--only-binary", ":all:", *wheels.values())
            self.run("-m", "pip", "check")
            return
        # TensorBoard declares grpcio, which has no wheels for free-threaded CPython; its files do not need it.
        tensorboard = wheels.pop("monitel-tensorboard")
        self.pip("--only-binary", ":all:", "--no-deps", tensorboard, "tensorboard>=2.12,<3")
        needed = self.run("-c", _TENSORBOARD_WITHOUT_GRPC).split()
        self.pip("--only-binary", ":all:", *wheels.values(), *needed)

    def smoke(self, twin: str) -> None:
        """Run all four distributions; ``twin`` is ``c`` or ``py``."""
        self.run(Path(__file__).with_name("smoke.py"), twin)


def check_wheels(python: Python, files: Path, scratch: Path) -> None:
    """Check that pip prefers the wheel with extensions, and that all four distributions work with it."""
    environment = Environment(python, scratch / f"installed-{python.version}")
    if "_window_c" not in environment.install_core(files):
        raise SystemExit(f"CPython {python.version}: pip chose the pure wheel though there is one with extensions")
    environment.install_exporters(files)
    environment.smoke("c")


def check_without_compiler(python: Python, files: Path, scratch: Path) -> None:
    """Check the pure wheel, then the sdist of the core, where there is no compiler."""
    environment = Environment(python, scratch / "installed-pure")
    (pure,) = files.glob(f"{CORE.file_name}-*-none-any.whl")
    environment.pip("--no-index", "--no-deps", pure)
    environment.install_exporters(files)
    environment.smoke("py")
    (archive,) = files.glob(f"{CORE.file_name}-*.tar.gz")
    environment.pip("--no-deps", "--force-reinstall", archive)
    environment.smoke("py")
