"""Where MLflow keeps runs: databases that are damaged, moved or copied, and servers that do not answer."""

WITHIN_S = 60.0
"""MLflow itself asks again for minutes."""
