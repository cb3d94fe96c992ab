"""The machine of a run: its environment, locks between runs, and its own Prefect server."""
