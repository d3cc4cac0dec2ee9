"""Log records: events of this pipeline and of an application's pipeline."""
