"""The machine of a run: its environment, locks between runs, a Prefect server of its own."""
