"""The client of device agents: lease a device, measure models on it as a stream, run models on it.

with local_agent(backend="ncnn") as client, client.lease():
    for measurement in client.measure(jobs):
        ...
"""

from profiling_agents.client.agent import AgentClient
from profiling_agents.client.jobs import ModelJob, ModelTooLargeError, RunError
from profiling_agents.client.local import local_agent
from profiling_agents.messages import AgentBusyError, AgentError, Measurement, MeasureSettings

__all__ = [
    "AgentBusyError",
    "AgentClient",
    "AgentError",
    "MeasureSettings",
    "Measurement",
    "ModelJob",
    "ModelTooLargeError",
    "RunError",
    "local_agent",
]
