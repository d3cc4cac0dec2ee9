"""The ledger of a run over all of its attempts: one file per run, which rank zero keeps below the spool root."""
