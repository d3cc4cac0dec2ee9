"""Instrumentation of PyTorch jobs: steps and their stages, waits, compilations and failures as Stats and events.

``import monitel`` does not import torch; this package does. It requires torch 2.10 or later.
"""

import torch as _torch  # noqa: F401  first: a run that waits for it loads the modules below

from monitel.torch.instrumentation import Instrumentation, instrument
from monitel.torch.loading import Batches, batches
from monitel.torch.monitor import Replacement, replace

__all__ = ["Batches", "Instrumentation", "Replacement", "batches", "instrument", "replace"]
