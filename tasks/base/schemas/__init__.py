"""JSON files that cross stages: one typed schema for each, shared by writer and readers, with a version.

Imports nothing else of the project but messages of devices, files and errors: every stage may use it.
"""
