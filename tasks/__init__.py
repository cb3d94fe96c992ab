"""Stages of a run, and what they share, in rooms: functions from artifacts to artifacts, without Prefect and Hydra."""

import importing  # before any library
