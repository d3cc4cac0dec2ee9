"""The Stats that the bridge itself adds to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monitel._window import own_add
from monitel.stats import Stat

if TYPE_CHECKING:
    from monitel.window import Window

_log = logging.getLogger("monitel.torch")
_said = False


@own_add
class OwnStat(Stat):
    """One whose samples come from within torch's calls: there a handler that fails must not be heard of.

    It would come out of ``optimizer.step()`` or ``next(batches)``, of which nobody expects it. It is logged, once.
    """

    __slots__ = ()

    def _log_window(self, window: Window) -> None:
        global _said
        try:
            super()._log_window(window)
        except Exception:
            if not _said:
                _said = True
                _log.warning("a handler fails with windows of %s, and perhaps of others", self.name, exc_info=True)
