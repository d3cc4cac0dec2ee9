"""Training: its steps, and where its time goes."""
