"""A run: its flows, the table of its stages and the walk through it, and what Prefect and MLflow show of it."""
