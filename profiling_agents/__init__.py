"""Profiling agents: services on or next to devices that run and time models, and the client that talks to them."""

import importing  # before any library
