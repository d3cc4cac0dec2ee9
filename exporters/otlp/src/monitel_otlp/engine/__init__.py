"""The work of one process: encoding in rounds, delivery, and the phases of the exit."""
