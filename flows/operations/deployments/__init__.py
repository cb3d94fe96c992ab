"""The flows that deployments offer: a short form in the Prefect UI, composed by Hydra like a command line."""
