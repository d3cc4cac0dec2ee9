"""From what is handed to ``Stat.add`` to a float: the way for whatever is no plain float or int."""

from __future__ import annotations


def to_float(stat: object, value: object) -> float:  # noqa: ARG001  other hooks need to know the Stat
    """The float that ``value`` stands for, by torch's rules (pybind11's float caster).

    This is the default value hook: both windows call it for whatever is not exactly a float or an int, and
    another one, put in place with ``set_value_hook``, may return None to keep a sample for later.

    Raises:
        TypeError: Not a real number. What ``__float__`` raised is its cause; a :class:`BaseException` such as
            :class:`KeyboardInterrupt` passes.
    """
    kind = type(value)  # not __class__, which a mock can set
    if issubclass(kind, float):
        return float.__float__(value)  # type: ignore[arg-type]  # mypy knows isinstance() only
    if isinstance(value, (str, bytes)) or not (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
        raise TypeError(f"add() takes a real number, got {kind.__qualname__}: {value!r:.80}")
    try:
        return float(value)  # type: ignore[arg-type]  # just checked, in the way that float() itself does
    except Exception as error:
        raise TypeError(f"add() takes a real number; {kind.__qualname__} gave none: {error}") from error
