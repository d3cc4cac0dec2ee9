"""Tensors as samples and event details, recorded without waiting for their device."""
