"""Resource attributes of the host, the operating system and the process, from OpenTelemetry's detectors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monitel.os_threads import start_thread
from monitel_otlp._compat import HostResourceDetector, OsResourceDetector, ProcessResourceDetector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.util.types import AttributeValue

_log = logging.getLogger("monitel.otlp")

#: The exported attributes. The detectors find more: ``host.id`` is confidential, the command may hold secrets, and the
#: owner and the paths name users.
ATTRIBUTES = {
    *("host.name", "host.arch"),
    *("os.type", "os.version"),
    *("process.pid", "process.executable.name"),
    *("process.runtime.name", "process.runtime.version", "process.runtime.description"),
}
_TIMEOUT = 1.0  # seconds; to find the owner of the process may need the network


def host_attributes() -> Mapping[str, AttributeValue]:
    """Return the attributes of ``ATTRIBUTES`` that OpenTelemetry's detectors find within a second. Never raises."""
    found: dict[str, AttributeValue] = {}
    if (thread := start_thread(lambda: _detect(found), "monitel-otlp-host")) is not None:
        thread.join(_TIMEOUT)
    if thread is not None and thread.is_alive():
        _log.warning("a detector of host and process takes more than %g s; its attributes are left out", _TIMEOUT)
    return dict(found)


def _detect(found: dict[str, AttributeValue]) -> None:
    for detector in (HostResourceDetector, OsResourceDetector, ProcessResourceDetector):
        try:
            detected = detector().detect().attributes
        except Exception:
            _log.warning("%s failed; its attributes are left out", detector.__name__.lstrip("_"), exc_info=True)
            continue
        found.update({name: value for name, value in detected.items() if name in ATTRIBUTES})
