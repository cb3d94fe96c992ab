"""What is done beside a run: deployments, nights, and whether services are well."""
