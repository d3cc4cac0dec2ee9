"""The documented differences between torch.monitor and monitel: cases in which torch crashes or contradicts itself."""

import copy
import datetime as dt
import math
import pickle
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.torch.promises.parity import HOURS, MOMENT, event, fill, make, outcome, plain, recorded, special, with_handle

import monitel

Call = Callable[[Any], Any]


def received_after_a_failure(m: Any) -> Any:
    """Count the handlers that receive an event whose first handler raises."""
    received: list[Any] = []
    first, second = m.register_event_handler(lambda _: 1 / 0), m.register_event_handler(received.append)
    with pytest.raises(ZeroDivisionError):
        m.log_event(event(m))
    m.unregister_event_handler(second)
    m.unregister_event_handler(first)
    return len(received)


def failure_at_fill(m: Any) -> Any:
    """Fill a window whose handler raises, and add another sample."""
    received: list[Any] = []

    def handler(event: Any) -> None:
        received.append(event)
        raise ZeroDivisionError

    handle = m.register_event_handler(handler)
    stat = make(m, 1)
    outcomes = [outcome(lambda _: stat.add(1), m), outcome(lambda _: stat.add(2), m)]
    m.unregister_event_handler(handle)
    return outcomes, len(received), stat.count, stat.get()[m.SUM]


def registered_none(m: Any) -> Any:
    handle = m.register_event_handler(None)
    try:
        return [outcome(lambda m: m.log_event(event(m)), m)]
    finally:
        m.unregister_event_handler(handle)


def cause(m: Any) -> Any:
    with pytest.raises(TypeError) as caught:
        make(m).add(special(object, float=ValueError))
    return type(caught.value.__cause__)


def interrupt(m: Any) -> Any:
    try:
        make(m).add(special(object, float=KeyboardInterrupt))
    except BaseException as error:
        return type(error)


def stays_in_data(m: Any) -> Any:
    made = event(m)
    made.data["b"] = 2
    return made.data


def window_of(size: Any) -> Call:
    return lambda m: fill(m, 1, window_size=size)[2]


def limit_of(max_samples: Any) -> Call:
    return lambda m: fill(m, 1, max_samples=max_samples)[2]


def copies(m: Any) -> Any:
    """Return whether two handlers receive the same Event object of a Stat."""
    with recorded(m) as one, recorded(m) as other:
        make(m, 1).add(1)
    return one[0] is other[0]


CRASH = "crashes the process: not run"

VALUE_OF = [{"Aggregation.VALUE": "float 2.0"}, [["str 'torch.monitor.Stat'", {"str 'x.value'": "float 2.0"}]]]

EMPTY = [{}, [["str 'torch.monitor.Stat'", {}]]]

EAST = MOMENT.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))

FOLD = MOMENT.replace(fold=1)

#: By name: a call, its outcome in torch, its outcome in monitel.
DIFFERENCES: dict[str, tuple[Call, Any, Any]] = {
    "Aggregation.VALUE": (lambda m: fill(m, 1, 2, aggregations=[m.VALUE])[1::2], EMPTY, VALUE_OF),
    "Aggregation(99)": (lambda m: m.Aggregation(99).name, "str '???'", ValueError),
    "Aggregation(True)": (lambda m: m.Aggregation(True), "Aggregation.???", ValueError),
    "Aggregation(4.0), which equals 4": (lambda m: m.Aggregation(4.0), TypeError, "Aggregation.SUM"),
    "Aggregation is an Enum: iter": (lambda m: len(list(m.Aggregation)), TypeError, "int 8"),
    "Aggregation is an Enum: len": (lambda m: len(m.Aggregation), TypeError, "int 8"),
    "Aggregation is an Enum: by name": (lambda m: m.Aggregation["SUM"], TypeError, "Aggregation.SUM"),
    "Aggregation is an Enum: identity": (lambda m: m.Aggregation(4) is m.SUM, "bool False", "bool True"),
    "Aggregation: pickle 0": (lambda m: pickle.loads(pickle.dumps(m.SUM, 0)), CRASH, "Aggregation.SUM"),
    **{f"window_size {size}": (window_of(size), CRASH, ValueError) for size in (0.0, 0.0001, HOURS * 0)},
    **{f"window_size {size}": (window_of(size), "int 0", ValueError) for size in (math.nan, -3e5, -HOURS)},
    **{f"max_samples {limit}": (limit_of(limit), "int 0", ValueError) for limit in (0, -1, -5, -(2**63), False)},
    "a name of an aggregation": (lambda m: [*fill(m, 3, aggregations=["sum"])[1]], TypeError, ["Aggregation.SUM"]),
    "max_samples: discarded": (lambda m: [make(m, 1).discarded], AttributeError, ["int 0"]),
    "a handler raises": (received_after_a_failure, "int 0", "int 1"),
    "a handler raises at fill": (
        failure_at_fill,
        [[ZeroDivisionError, ZeroDivisionError], "int 2", "int 0", "float 2.0"],
        [[ZeroDivisionError, "str 'NoneType None'"], "int 1", "int 0", "float 1.0"],
    ),
    "unregister None": (lambda m: m.unregister_event_handler(None), CRASH, TypeError),
    "register None": (registered_none, [RuntimeError], TypeError),
    "handle": (lambda m: with_handle(m, lambda handle: hasattr(handle, "__enter__")), "bool False", "bool True"),
    "Stat.__new__(Stat).add(1)": (lambda m: m.Stat.__new__(m.Stat).add(1), CRASH, RuntimeError),
    "Stat subclass without super().__init__()": (
        lambda m: type("Bare", (m.Stat,), {"__init__": lambda _: None})().add(1),
        TypeError,  # at creation
        RuntimeError,
    ),
    "__float__ that raises": (cause, types.NoneType, ValueError),
    "__float__: BaseException passes": (interrupt, TypeError, KeyboardInterrupt),
    "bool": (lambda m: event(m, data={"a": True}).data["a"], "float 1.0", "bool True"),
    "np.bool_": (lambda m: event(m, data={"a": np.bool_(False)}).data["a"], "float 0.0", "bool False"),
    "aware timestamp": (lambda m: event(m, timestamp=EAST).timestamp, plain(MOMENT), plain(EAST)),
    "fold": (lambda m: event(m, timestamp=FOLD).timestamp.fold, "int 0", "int 1"),
    "event.data[k] = v": (stays_in_data, {"str 'a'": "int 1"}, {"str 'a'": "int 1", "str 'b'": "int 2"}),
    "Event ==": (lambda m: event(m) == event(m), "bool False", "bool True"),
    "Event hash": (lambda m: len({*map(hash, [event(m), event(m, data={})])}), "int 2", "int 1"),
    "Event repr": (lambda m: "'n'" in repr(event(m)), "bool False", "bool True"),
    "Event copy": (lambda m: copy.copy(event(m)).name, TypeError, "str 'n'"),
    "Event pickle": (lambda m: pickle.loads(pickle.dumps(event(m))).name, TypeError, "str 'n'"),
    "Event pickle 0": (lambda m: pickle.loads(pickle.dumps(event(m), 0)).name, CRASH, TypeError),
    "_WaitCounter": (lambda m: m._WaitCounter("a").key, AttributeError, "str 'a'"),
    # the range of times, text that is not valid UTF-8, one Event for all handlers of a Stat
    "timestamp in 3000": (lambda m: event(m, timestamp=MOMENT.replace(3000)).timestamp.year, "int 1830", "int 3000"),
    "value b'\\xff'": (lambda m: event(m, data={"a": b"\xff"}).data, TypeError, UnicodeDecodeError),
    "value '\\ud800'": (lambda m: event(m, data={"a": "\ud800"}), RuntimeError, TypeError),
    "Stat's Event is shared": (copies, "bool False", "bool True"),
}


@pytest.mark.parametrize(("call", "torchs", "ours"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_differences(call: Call, torchs: Any, ours: Any) -> None:
    """The cases are those in which torch crashes or contradicts its documentation."""
    if torchs is not CRASH:
        assert torchs == outcome(call, torch.monitor)
    assert ours == outcome(call, monitel)
