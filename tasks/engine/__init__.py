"""tasks/engine."""
