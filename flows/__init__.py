"""Flows, configuration, tracking and the command line."""

import quiet_libraries  # noqa: F401  # before any library
