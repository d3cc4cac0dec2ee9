"""The black box: the state of a pipeline in a folder in memory, from which another process delivers the rest."""
