"""Order and retries of requests."""
