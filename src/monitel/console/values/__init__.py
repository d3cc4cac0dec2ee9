"""The last values of a run: its numbers, its configuration and its steps, stored beside its ledger."""
