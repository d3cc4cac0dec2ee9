"""Hooks of torch at the boundaries of a step's stages: optimizer steps, batches, backward, waits for other ranks."""
