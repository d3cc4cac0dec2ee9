"""The commands ``doctor``, ``cat`` and ``replay``, which ``monitel`` finds by entry points."""
