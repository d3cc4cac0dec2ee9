"""What was asked for: arguments, variables, the launcher."""
