"""The commands: each module adds one to the parser, and prints what it says."""
