"""Samples and raw outputs in numpy: texts, signals, several inputs, boxes."""
