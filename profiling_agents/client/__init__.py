"""The client of device agents: lease a device, measure models on it as a stream, run models on it.

with local_agent(backend="ncnn") as client, client.lease():
    for measurement in client.measure(jobs):
        ...
"""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from profiling_agents.client.agent import AgentClient
    from profiling_agents.client.jobs import ModelJob, ModelTooLargeError, RunError
    from profiling_agents.client.ssh import local_agent
    from profiling_agents.messages import AgentBusyError, AgentError, Measurement, MeasureSettings
else:
    __getattr__ = public_names(__name__, __file__)
