"""What outlives a process: the journals of what it records, a snapshot each second, and their recovery."""
