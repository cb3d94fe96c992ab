"""What a run uses of this machine: its environment, locks between runs, a Prefect server of its own."""
