"""What is around every stage: a Prefect task that keeps nothing, and what its end publishes.

Results live in our own store and are found there by key, so Prefect neither persists nor caches anything. Only stages
that talk to an agent are retried, with back-off; what they have measured stays, so a retry goes on.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import State
from prefect.tasks import Task, exponential_backoff

from flows.artifacts import publish_stage
from flows.run import Output
from profiling_agents.messages import AgentError

P = ParamSpec("P")
R = TypeVar("R")
RETRIES = 5
OF_IMAGES = {"validation_images", "recalibration_images"}
OF_TIMING = {"measure", "rounds", "conversion_wall_s", "conversion_memory_mib"}
"""Settings of the predict stage that decide how SubNets are evaluated, and timed."""


def _is_agents_fault(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.data, AgentError)


def stage_task(name: str, *, agent: bool = False) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A Prefect task that persists nothing; `agent`: one per device, retried when its agent is lost or busy."""
    retried: dict[str, Any] = {
        "retries": RETRIES,
        "retry_delay_seconds": exponential_backoff(backoff_factor=2),
        "retry_jitter_factor": 0.2,
        "retry_condition_fn": _is_agents_fault,
    }
    return task(name=name, persist_result=False, cache_policy=NO_CACHE, **(retried if agent else {}))


def finish(output: Output) -> Output:
    """The output of a stage, which is published."""
    publish_stage(output)
    return output
