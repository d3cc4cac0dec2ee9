"""Ranges: named stretches of time in threads and asyncio tasks, and subscriptions to them.

This module does not depend on profiles, traces or spans. A consumer of ranges subscribes::

    listening = ranges.listen(began=on_begin, ended=on_end)   # either may be omitted
    ...
    listening.close()

* Both callbacks receive the same :class:`Range`, in the thread and the context that runs it, with no lock held. They
  must be fast and thread-safe; ``list.append`` is both. An Exception from a callback goes to
  :func:`sys.unraisablehook`.
* The set of listeners for a range's end is fixed when the range begins. A listener receives exactly the ends of the
  ranges that began while it was subscribed, even after ``close()``.
* Parents come from the context (:mod:`contextvars`), so interleaved asyncio tasks have correct parents. The range in
  which a task was created is the parent of the task's outermost ranges, and may end before them.
* When a range begins, its parent has not ended. A listener can therefore store data (for example span ids) by the
  Range, which is hashable by identity, from its beginning to its end, and look up the parent's data there. If there is
  none, the parent began before the listener subscribed.
* Without listeners nothing is recorded. A range that begins then is never reported to listeners that subscribe later.
* A forked child has no listeners. To receive the child's ranges, subscribe in the child.
"""

from monitel.profiler.ranges.annotation import record_function, record_past
from monitel.profiler.ranges.recorder import Listening, Range, current_range, listen, now, synchronize
from monitel.profiler.ranges.tracks import Track

__all__ = [
    "Listening",
    "Range",
    "Track",
    "current_range",
    "listen",
    "now",
    "record_function",
    "record_past",
    "synchronize",
]
