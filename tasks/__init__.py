"""Stages of a run, one module or package for each: functions from artifacts to artifacts, without Prefect and Hydra."""
