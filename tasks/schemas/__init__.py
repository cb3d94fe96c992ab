"""JSON files that cross stages: one typed schema for each, shared by writer and readers, with a version.

Imports nothing of the house but messages of devices, files and errors: every stage may use it.
"""
