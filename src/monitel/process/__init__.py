"""This process: its begin, forks, signals, threads and end."""
