"""Flows, configuration, tracking and the command line."""

import importing  # noqa: F401  # before any library
