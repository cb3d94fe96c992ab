"""Offload."""
