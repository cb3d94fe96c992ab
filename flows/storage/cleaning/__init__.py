"""Leftovers in an output folder, on a disk or at a URL: listed by kind, and removed if nobody works on them."""
