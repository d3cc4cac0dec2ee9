"""Events into log records."""
