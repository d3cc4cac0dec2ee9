"""The record of a process that outlives it: journals, a snapshot each second, and their recovery."""
