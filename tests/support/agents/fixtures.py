"""Real agents, each a process of its own on loopback, started at first need and shared by a session's tests."""

from collections.abc import Iterator

import pytest

from profiling_agents.client import AgentClient, local_agent

BACKENDS = ("ncnn", "onnxruntime")


@pytest.fixture(scope="session")
def ncnn_agent() -> Iterator[AgentClient]:
    with local_agent("ncnn") as client:
        yield client


@pytest.fixture(scope="session")
def onnxruntime_agent() -> Iterator[AgentClient]:
    with local_agent("onnxruntime") as client:
        yield client


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def agent(backend: str, request: pytest.FixtureRequest) -> AgentClient:
    """An agent of each backend in turn."""
    client: AgentClient = request.getfixturevalue(f"{backend}_agent")
    return client


@pytest.fixture(scope="session")
def small_agents() -> Iterator[dict[str, AgentClient]]:
    """Agents with tight limits, by backend."""
    limits = ["--wall-limit-s", "6", "--memory-limit-mib", "1024", "--max-model-mib", "64"]
    with local_agent("ncnn", options=limits) as ncnn, local_agent("onnxruntime", options=limits) as onnxruntime:
        yield {"ncnn": ncnn, "onnxruntime": onnxruntime}
