"""Work beside a run: deployments and nights."""
