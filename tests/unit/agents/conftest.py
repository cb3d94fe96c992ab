"""Fixtures of this room, for the tests of this tier."""

from tests.support.agents.fixtures import agent, backend, ncnn_agent, onnxruntime_agent, small_agents

__all__ = ["agent", "backend", "ncnn_agent", "onnxruntime_agent", "small_agents"]
