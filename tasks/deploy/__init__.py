"""Deployment: a bundle and the run time onto a device."""
