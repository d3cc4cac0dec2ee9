"""Sources of telemetry in PyTorch: each one installs hooks in torch and records what they report."""
