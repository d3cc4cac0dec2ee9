"""Background threads: workers, pacing beside the training loop, and calls of application code."""
