"""The verdict about a job: one line that names what holds it up, by documented rules."""
