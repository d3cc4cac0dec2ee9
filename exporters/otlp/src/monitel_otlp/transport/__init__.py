"""One attempt to deliver one request."""
