"""The wheel of the run time, and deployments of it with a bundle."""
