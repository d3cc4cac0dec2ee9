"""The stages of a training step, which show in which of them a rank is late."""
