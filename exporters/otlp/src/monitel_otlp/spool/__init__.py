"""The spool: requests and raw items on disk."""
