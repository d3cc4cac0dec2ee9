"""Loaded by each Python that a command of ``monitel run`` starts: records the process once it imports torch or monitel.

It must work in every Python, from 2.7 on, and print nothing. It removes this folder from ``sys.path``, loads the
sitecustomize module that it hides, and changes nothing else until one of the modules is imported.
"""

import os
import sys

_MODULES = ("torch", "monitel")
_OWN = os.path.dirname(os.path.abspath(__file__))


def _leave():
    """Make the rest of the process find what it would find without this folder."""
    sys.path[:] = [entry for entry in sys.path if entry.rstrip(os.sep) != _OWN]
    sys.path_importer_cache.pop(_OWN, None)
    return sys.modules.pop("sitecustomize", None)  # the caller keeps it: Python 2 clears a module that nobody holds


def _module_of(arguments):
    """Return the module that the interpreter runs with -m; empty for a script or a command."""
    skipped = False  # the value of an option
    for index, argument in enumerate(arguments[:-1]):
        if argument == "-m":
            return arguments[index + 1]
        if not skipped and (argument.startswith("-c") or not argument.startswith("-")):
            break
        skipped = argument in ("-X", "-W")
    return ""


def _is_recorded():
    """Return True if this process may be one to record. Children of multiprocessing and compile workers are not."""
    if sys.version_info < (3, 10) or not os.environ.get("MONITEL_RUN_FOLDER"):
        return False
    arguments = sys.orig_argv[1:]
    module = _module_of(arguments)
    return not (
        "--multiprocessing-fork" in arguments
        or any(text.startswith("from multiprocessing.") for text in arguments)
        or any("torch/_inductor/compile_worker" in text for text in arguments)
        or (module.startswith("torch.") and not module.startswith("torch.distributed."))
    )


class _Watch:
    """Calls :func:`monitel.console.run.autostart.begin` after the first import of each module."""

    def __init__(self):
        self._waiting = set(_MODULES)

    def find_spec(self, name, path=None, target=None):
        """Find a module through the finders behind this one, and watch its execution if it is awaited."""
        if name not in self._waiting:
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            find = getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                try:
                    self._observe(spec.loader, name)
                except Exception:  # a loader without attributes: the process is not recorded
                    pass
                return spec
        return None

    def _observe(self, loader, name):
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            if module.__name__ == name and name in self._waiting:
                loader.__dict__.pop("exec_module", None)
                self._executed(name)

        if "exec_module" not in loader.__dict__:
            loader.exec_module = exec_module

    def _executed(self, name):
        self._waiting.discard(name)
        try:
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from monitel.console.run.autostart import begin
            if begin(name):
                return
        except Exception:  # another environment, without these packages, or with a damaged one
            pass
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


def _watch():
    try:
        if _is_recorded():
            watch = _Watch()
            sys.meta_path.insert(0, watch)
            for name in _MODULES:
                if name in sys.modules:  # the other sitecustomize has imported it
                    watch._executed(name)
    except Exception:
        pass


_module = _leave()
try:
    __import__("sitecustomize")  # the one that this module hides; if there is none, site ignores the ImportError
finally:
    _watch()
