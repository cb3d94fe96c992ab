"""Samples with several inputs: a synthesised source, and tables whose rows name images and have numbers."""
