"""Collection of the black boxes of dead processes: each becomes a spool, exactly once."""
