"""Sources of waits."""
