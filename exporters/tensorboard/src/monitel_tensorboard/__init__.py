"""TensorBoard event files from monitel, without torch or TensorFlow."""

from monitel_tensorboard.installation import Installation, install
from monitel_tensorboard.writer import SummaryWriter

__version__ = "0.3.0"

__all__ = ["Installation", "SummaryWriter", "install"]
