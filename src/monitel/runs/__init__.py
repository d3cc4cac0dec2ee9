"""Processes and their runs, as they are stored: ends of processes, and ledgers over all attempts."""
