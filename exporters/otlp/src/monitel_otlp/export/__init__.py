"""From a recorded value to a request: items of the journals, totals, requests, senders."""
