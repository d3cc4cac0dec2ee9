"""The partition of a thread's time into cycles and stages."""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread
from typing import TYPE_CHECKING
from weakref import ref

from monitel.process.os_threads import local

if TYPE_CHECKING:
    from torch import Tensor

#: The stages, in the order in which a cycle has them.
STAGES = ("optimizer", "other", "data", "forward", "backward", "sync")

_ITERATORS = 16  # remembered between two backwards; the time of older ones is ``other``


class _Asked:
    """The requests to one iterator since the last backward. Ids of iterators are reused, so it has a weak reference."""

    __slots__ = ("batches", "iterator", "ns")

    def __init__(self, iterator: object) -> None:
        self.iterator = _reference(iterator)
        self.batches = 0
        self.ns = 0


class Cycle:
    """Divides the time of a training thread into stages. docs/reference/torch-sources.md defines them.

    A cycle begins at the end of the last backward before an optimizer has made its step, and ends at the next such
    moment. Which requests for batches were for training is known at the next backward only: their times are kept.

    It keeps sums, not boundaries, so its memory does not grow. Each call adds the time since the previous one to a sum:
    they are right after any order of calls. An interrupt loses nothing: no call is between changes that belong
    together.
    """

    def __init__(self, ended: Callable[[Cycle, list[int] | None], None]) -> None:
        self.thread = current_thread()
        self.waited_ns = 0
        self.mark_ns = self.step_ns = 0
        self.requesting = False  # whether a request for a batch is under way
        self._ended = ended
        self._began: int | None = None  # what it had waited at the begin; None until the first backward
        self._optimizer = self._other = self._data = self._forward = self._backward = 0
        # Moments are times without waiting: their differences are durations without waiting.
        self._mark = 0  # all time before it is in one of the sums
        self._step = 0  # when the last optimizer began
        self._waited_at_backward = 0  # what it had waited at the end of the last backward
        self._open = False  # whether a backward has ended since the last step of an optimizer
        self._stepping = False  # whether one has begun since then
        self._cuts = False  # whether an optimizer has stepped inside the backward under way
        self._trained: list[_Asked] = []  # the iterators of the batches of the last backward
        self._asked: list[_Asked] = []
        self._asks = False
        self._trains = False  # whether the last request was for training
        self._last: _Asked | None = None  # the iterator that was asked for training last
        self._not_training = 0  # time between requests, and of requests that are not for training
        self._complete_at = 0  # mark_ns at which the gradients of the backward that began there were complete
        self._waits = 0  # waits for other ranks under way
        self._waits_at = 0  # mark_ns when they began; after a boundary they are over or lost

    @property
    def asks(self) -> bool:
        return self._asks

    @property
    def trains(self) -> bool:
        """True if the last batch that was asked for is for training, if backward began now."""
        return self._trains and not self.requesting

    @property
    def forward_since_ns(self) -> int:
        """The begin of ``forward``, if backward began now; 0 without a forward."""
        return self.mark_ns if self.trains or not self._asks else 0

    def optimizer_began(self, now_ns: int) -> None:
        self._stepping = self._open
        self._step = now_ns - self.waited_ns
        self.step_ns = now_ns

    def optimizer_ended(self, now_ns: int) -> None:
        """The cycle has ended with the last backward before."""
        if self._open:
            self._cut()
        self._stepping = self._cuts = False
        here, mark, step = now_ns - self.waited_ns, self._mark, self._step
        if self._asks and step > mark:  # a batch was asked between backward and the optimizer
            self._not_training += step - mark
            mark = step
        self._optimizer += here - mark
        self._mark, self.mark_ns = here, now_ns

    def batch_began(self, now_ns: int) -> None:
        if self._stepping:  # the step has raised, as closures ask for no batch
            self._cut()
        here = now_ns - self.waited_ns
        self._not_training += here - self._mark
        self._mark, self.mark_ns = here, now_ns
        self._asks = self.requesting = True

    def batch_ended(self, now_ns: int, iterator: object, received: int | None, training: bool) -> None:
        """``received`` is 1; 0 if the iterator was only opened; None if it is exhausted or has raised."""
        here = now_ns - self.waited_ns
        spent = here - self._mark
        asked = _find(self._asked, iterator) if self._asked else None
        known = _find(self._trained, iterator) if asked is None or received is None else None
        not_training = 0
        kept, last = self._asked, self._last
        trains = training and (received is not None or known is not None)
        if trains:
            if asked is None:
                asked = known or _Asked(iterator)
                asked.batches = asked.ns = 0
                kept = [*kept, asked]
                if len(kept) > _ITERATORS:
                    not_training = kept.pop(0).ns
            if received != 0 or last is None:
                last = asked
            asked.batches += received or 0
            asked.ns += spent
        else:
            not_training = spent
            if received is None and asked is not None:
                kept = [each for each in kept if each is not asked]
                not_training += asked.ns
                last = (kept[-1] if kept else None) if last is asked else last
        self._trains, self._asked, self._last, self._mark, self.mark_ns = trains, kept, last, here, now_ns
        self._not_training += not_training
        self._asks, self.requesting = True, False

    def backward_began(self, now_ns: int) -> None:
        """Now it is known which requests were for training."""
        here = now_ns - self.waited_ns
        gap = here - self._mark
        batches = -1 if self._last is None else self._last.batches
        trained: list[_Asked] = []
        data, other = 0, self._not_training
        for each in self._asked:
            if each.batches == batches:
                data += each.ns
                trained.append(each)
            else:
                other += each.ns
        self._mark, self.mark_ns = here, now_ns
        self._open = self._stepping = False
        self._data += data
        self._other += other
        if not self._asks or (self._trains and not self.requesting):
            self._forward += gap
        elif self.requesting:  # backward is part of making a batch
            self._data += gap
        else:
            self._other += gap
        if trained:
            self._trained = trained
        self._asked, self._last, self._not_training = [], None, 0
        self._asks = self._trains = self.requesting = False

    def backward_ended(self, now_ns: int) -> None:
        if self._asks:  # its begin was lost by an interrupt
            self.backward_began(now_ns)
        here = now_ns - self.waited_ns
        self._backward += here - self._mark
        self._mark, self.mark_ns = here, now_ns
        self._waited_at_backward = self.waited_ns
        self._open = True
        if self._cuts:
            self._cut()

    def gradients_complete(self) -> None:
        """The rest of backward is a wait for the gradients of other ranks."""
        self._complete_at = self.mark_ns

    def wait_began(self) -> int:
        """Return the argument of :meth:`wait_ended`."""
        self._waits = self._waits + 1 if self._waits_at == self.mark_ns else 1
        self._waits_at = self.mark_ns
        return self.waited_ns

    def wait_ended(self, before_ns: int, ns: int) -> None:
        """The time contains that of the waits within this one."""
        self.waited_ns = before_ns + ns
        if self._waits_at == self.mark_ns and self._waits:
            self._waits -= 1

    def in_flight(self) -> tuple[str, bool, int] | None:
        """Return the stage, whether it waits for ranks, and its begin; None before the first boundary.

        Any thread may call it.
        """
        while True:
            since_ns = self.mark_ns
            stage = self._stage_now()
            waits = self._waits_at == since_ns and self._waits > 0
            waits = waits or (stage == "backward" and self._complete_at == since_ns)
            if since_ns == self.mark_ns:  # else the thread has passed a boundary meanwhile
                return (stage, waits, since_ns) if since_ns else None

    def _stage_now(self) -> str:
        if self._stepping:
            return "optimizer"
        if self.requesting:
            return "data"
        if self._asks:
            return "forward" if self._trains else "other"
        if self._open:
            return "optimizer" if self._trained else "other"
        before = self._forward or self._data or self._other
        return "backward" if before else "other"  # the time before a backward is added when it begins

    def waited(self, ns: int = 0) -> int:
        """Add time that the thread has waited for other ranks, and return the sum."""
        self.waited_ns += ns
        return self.waited_ns

    def optimizer_began_in_backward(self) -> None:
        """The cycle ends with this backward."""
        self._cuts = True

    def _cut(self) -> None:
        """End the cycle at the end of the last backward, unless it has ended there, and begin the next one."""
        self._stepping = self._cuts = False
        if not self._open:
            return
        self._open = False
        began, self._began = self._began, self._waited_at_backward
        own = [self._optimizer, self._other, self._data, self._forward, self._backward]
        self._optimizer = self._other = self._data = self._forward = self._backward = 0
        self._ended(self, None if began is None else [*own, self._began - began])


def _reference(iterator: object) -> Callable[[], object]:
    try:
        return ref(iterator)
    except TypeError:  # not weakly referenceable
        return lambda: iterator


def _find(asked: list[_Asked], iterator: object) -> _Asked | None:
    if iterator is not None:
        for each in asked:
            if each.iterator() is iterator:
                return each
    return None


class TrainingThread(local):
    """State of the calling thread at the boundaries of its stages."""

    cycle: Cycle | None = None  # None in a thread without backward
    requests = False  # whether it is waiting for a batch
    entered: int | None = None  # the id of the optimizer whose step() was entered last
    scaled: list[Tensor | None] | None = None  # found_inf of the optimizers in the GradScaler.step() under way
