"""A long queue of a real agent, whose network is cut twice while results are fetched; two jobs in a thousand fail."""

import secrets
import threading
from dataclasses import dataclass

import psutil

from profiling_agents.client import AgentClient, Measurement, MeasureSettings
from profiling_agents.messages import JobsQueued, JobsRequest
from tests.support.agents import agent_models, agent_processes
from tests.support.agents.cut_network import network

QUICK = MeasureSettings(
    time_cap_ms=1.0,
    warmup_ms=0.0,
    min_blocks=1,
    samples_per_block=3,
    min_samples=3,
    sample_us=10,
    spread_limit=1e9,
    patience=0.0,
)
PER_BATCH = 200
CUTS = (0.3, 0.7)
"""When the network is cut, as shares of the results."""
CUT_S = 1.0


@dataclass(frozen=True)
class QueueRun:
    """`results` in the order in which they came; `failing`: numbers of jobs that cannot be measured.

    `full_bytes`, `after_bytes`: growth of the agent's resident memory with a full queue, and when all is fetched. `done` of
    `last`: jobs that the agent says are done.
    """

    results: list[Measurement]
    failing: set[int]
    done: int
    last: int
    full_bytes: int
    after_bytes: int


def measure_queue(count: int) -> QueueRun:
    """Queue `count` jobs behind one that never ends, cancel that one, fetch all results."""
    failing = {index for index in range(count) if index % 500 == 7}
    with (
        agent_processes.started() as (process, printed),
        network(printed["agent ready"]) as wire,
        AgentClient(wire.url, agent_processes.TOKEN) as client,
        client.lease(),
    ):
        service = psutil.Process(process.pid)
        list(client.measure([agent_models.convolution("ncnn", f"{index}") for index in range(20)]))
        before = service.memory_info().rss
        endless = client.submit([agent_models.endless("ncnn", "endless")])
        numbers = _submit(client, endless.stop, count, failing)
        assert client.progress(numbers[-1]).position == count
        full_bytes = service.memory_info().rss - before
        client.cancel(endless.start)
        found: list[Measurement] = []
        for result in client.results(numbers):
            found.append(result)
            if len(found) in {round(share * count) for share in CUTS}:
                wire.cut()
                threading.Timer(CUT_S, wire.mend).start()
        after_bytes = service.memory_info().rss - before
        done = client.progress(numbers[-1]).done
    return QueueRun(found, failing, done, numbers.stop, full_bytes, after_bytes)


def _submit(client: AgentClient, start: int, count: int, failing: set[int]) -> range:
    """Numbers of the jobs, which share one model."""
    job = agent_models.convolution("ncnn", "0")
    message = job.message()
    client._upload(job, message)
    numbers = range(start, start)
    while len(numbers) < count:
        part = tuple(
            message.model_copy(
                update={"key": f"{index}"} | ({"output_names": ("elsewhere",)} if index in failing else {})
            )
            for index in range(len(numbers), min(count, len(numbers) + PER_BATCH))
        )
        request = JobsRequest(batch=secrets.token_hex(16), jobs=part, settings=QUICK)
        queued = JobsQueued.model_validate_json(client._send("POST", "/v1/jobs", request.model_dump_json().encode()))
        numbers = range(start, queued.next)
    return numbers
