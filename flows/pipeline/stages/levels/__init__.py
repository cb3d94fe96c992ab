"""The stage "front": the levels of one device as one table."""

from flows.pipeline.stages.levels.front import FRONT

__all__ = ["FRONT"]
