"""Predictors of latency and accuracy, and their errors."""
