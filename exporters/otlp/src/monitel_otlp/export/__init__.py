"""From the items of the journals to requests and their outcome: encoders, senders, and records of ended processes."""
