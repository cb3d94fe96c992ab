"""What is left in an output folder, on a disk or at a URL: told by kind, and removed where nobody works at it."""
