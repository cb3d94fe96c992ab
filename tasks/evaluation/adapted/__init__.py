"""Adapted."""
