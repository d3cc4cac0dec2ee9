"""Conversion of values passed to ``Stat.add`` that are not exactly float or int."""

from __future__ import annotations


def to_float(stat: object, value: object) -> float:  # noqa: ARG001  other hooks need the Stat
    """Convert ``value`` to a float by torch's rules (pybind11's float caster).

    This is the default value hook, called for values that are not exactly float or int. Another hook, set with
    ``set_value_hook``, may return None to add the sample later.

    Raises:
        TypeError: Not a real number. An exception of ``__float__`` is its cause; a :class:`BaseException` such as
            :class:`KeyboardInterrupt` is not caught.
    """
    kind = type(value)  # not __class__, which a mock can set
    if issubclass(kind, float):
        return float.__float__(value)  # type: ignore[arg-type]  # mypy knows isinstance() only
    if isinstance(value, (str, bytes)) or not (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
        raise TypeError(f"add() takes a real number, got {kind.__qualname__}: {value!r:.80}")
    try:
        return float(value)  # type: ignore[arg-type]  # has one of the methods that float() uses
    except Exception as error:
        raise TypeError(f"add() takes a real number; converting {kind.__qualname__} failed: {error}") from error
