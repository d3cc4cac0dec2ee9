"""Stats: samples in windows, and what each window reports."""
