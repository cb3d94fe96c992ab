"""Partitions: the page of a SubNet split over devices, its picture, and the same as sections of a report."""
