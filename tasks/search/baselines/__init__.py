"""Baselines: networks compared with a search's winners, evaluated and timed in the same way on the same images and devices."""
