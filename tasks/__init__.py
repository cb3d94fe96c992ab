"""Stages of a run, one module or package for each: functions from artifacts to artifacts, without Prefect and Hydra."""

import importing  # noqa: F401  # before any library
