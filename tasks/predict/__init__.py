"""Predictors of latency and accuracy, and how far they are off."""
