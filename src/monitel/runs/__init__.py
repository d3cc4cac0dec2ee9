"""The runs of a process: their ledger and last values, stored over all attempts."""
