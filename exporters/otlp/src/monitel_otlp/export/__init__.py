"""From what is recorded to requests: items of the journals, totals, requests, senders."""
