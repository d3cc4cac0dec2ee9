"""Windows into metric points."""
