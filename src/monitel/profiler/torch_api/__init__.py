"""The classes and functions of ``torch.profiler``, on top of recordings."""
