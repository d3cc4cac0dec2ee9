"""The bridge to PyTorch: what torch measures and nobody reads, as Stats, wait counters and events.

``import monitel`` never imports torch; this package does.
"""

from monitel.torch.instrumentation import Instrumentation, instrument
from monitel.torch.replacement import Replacement, replace

__all__ = ["Instrumentation", "Replacement", "instrument", "replace"]
