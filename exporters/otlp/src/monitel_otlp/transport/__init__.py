"""Transports over HTTP and gRPC: one attempt to deliver one request."""
