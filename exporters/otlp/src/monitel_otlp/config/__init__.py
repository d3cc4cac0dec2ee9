"""Configuration: environment variables, endpoints, secrets and the resource of a process."""
