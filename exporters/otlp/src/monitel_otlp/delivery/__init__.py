"""Delivery of requests: order, retries, splitting, and the spools of ended processes."""
