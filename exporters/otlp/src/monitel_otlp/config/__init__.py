"""Configuration: arguments, environment variables, endpoints and the launcher."""
