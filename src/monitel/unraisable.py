"""Report exceptions that no caller can catch."""

from __future__ import annotations


def report(error: BaseException) -> None:
    """Hand an exception to :func:`sys.unraisablehook`."""
    raiser = _Raiser(error)
    del error  # the traceback will hold this frame too
    del raiser


class _Raiser:
    """Raises an exception in its destructor: the only way to the hook from Python."""

    def __init__(self, error: BaseException) -> None:
        self._errors = [error]

    def __del__(self) -> None:
        raise self._errors.pop()  # popped: the traceback holds this frame, and would keep the exception alive
