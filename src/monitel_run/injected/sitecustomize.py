"""Loaded by each Python that a command of ``monitel run`` starts: records the process once it imports torch or monitel.

It prints nothing, removes this folder from ``sys.path``, loads the sitecustomize module that it hides, and changes
nothing else until one of the modules is imported. An older Python reads it as well, so it has no annotations.
"""

import os
import sys

_MODULES = ("torch", "monitel")
_OWN = os.path.dirname(os.path.abspath(__file__))


def _is_recorded():
    """Return True if this process may be one to record: not workers of the compiler, nor tools of torch."""
    if sys.version_info < (3, 10) or not os.environ.get("MONITEL_RUN_FOLDER"):
        return False
    arguments, module = sys.orig_argv[1:], ""
    words = iter(arguments)
    for word in words:
        if word in ("-X", "-W"):
            next(words, "")
        elif word == "-m":
            module = next(words, "")
            break
        elif word.startswith("-c") or not word.startswith("-"):
            break
    return not (
        "--multiprocessing-fork" in arguments
        or any(text.startswith("from multiprocessing.") for text in arguments)
        or any("torch/_inductor/compile_worker" in text for text in arguments)
        or (module.startswith("torch.") and not module.startswith("torch.distributed."))
    )


class _Watch:
    """Calls :func:`monitel.runs.exporters.begin` after the first import of each module."""

    def __init__(self):
        self._waiting = set(_MODULES)

    def find_spec(self, name, path=None, target=None):
        """Find a module through the finders behind this one, and watch its execution if it is awaited."""
        if name not in self._waiting:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else ():
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
                self.executed(name)

        if "exec_module" not in loader.__dict__:
            loader.exec_module = exec_module

    def executed(self, name):
        """Begin, and stop watching if no further module is awaited."""
        self._waiting.discard(name)
        try:
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from monitel.runs.exporters import begin
            if begin(name):
                return
        except Exception:  # another environment, without these packages, or with a damaged one
            pass
        self._waiting.clear()
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


# The rest of the process finds what it would find without this folder.
sys.path[:] = [entry for entry in sys.path if entry.rstrip(os.sep) != _OWN]
sys.path_importer_cache.pop(_OWN, None)
_module = sys.modules.pop("sitecustomize", None)
try:
    __import__("sitecustomize")  # the one that this module hides; if there is none, site ignores the ImportError
finally:
    try:
        if _is_recorded():
            _watch = _Watch()
            sys.meta_path.insert(0, _watch)
            for _name in _MODULES:
                if _name in sys.modules:  # the other sitecustomize has imported it
                    _watch.executed(_name)
        elif any(word == "--multiprocessing-fork" or "multiprocessing.forkserver" in word for word in sys.orig_argv):
            from monitel_run.folder import UNRECORDED, announce

            announce(UNRECORDED, "")
    except Exception:
        pass
