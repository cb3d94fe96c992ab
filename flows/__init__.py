"""Flows, configuration, tracking and the command line."""

import importing  # before any library
