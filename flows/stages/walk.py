"""One walk through a table of stages: each a Prefect task, devices side by side.

Results live in our own store and are found there by key, so Prefect neither persists nor caches anything. Only stages
that talk to an agent are retried, with back-off; what they have measured stays, so a retry goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import TerminationSignal
from prefect.futures import wait
from prefect.states import State
from prefect.tasks import Task, exponential_backoff

from flows.config import FlowConfig
from flows.pages.facts import by_device, named_by
from flows.pages.publish import line_of, publish_stage, publish_winners
from flows.run import Output, Run, RunSummary
from flows.stages.spec import Context, Outputs, StageSpec
from flows.tracking.metrics import run_metrics
from profiling_agents.messages import AgentError
from tasks.problems import problem_named
from tasks.progress import Progress
from tasks.schemas.stored import StageResult

RETRIES = 5
GRACE_SECONDS = 2.0
"""The time that stages on devices have to end by themselves after an interruption."""
STOP_SECONDS = 30.0
"""The time that they have when their agents are gone."""


def walk(table: Sequence[StageSpec], run: Run, config: FlowConfig, until: str) -> Outputs:
    """Work the stages of a table in order, up to the last one of command `until`; their outputs."""
    outputs: dict[str, Mapping[str, Output]] = {}
    for spec in rows(table, config, until):
        outputs[spec.name] = work(spec, run, config, outputs)
        for device, output in outputs[spec.name].items():
            run.tracker.log_series(run.tracker.run_id, run_metrics(spec.name, device, output.result))
    return outputs


def rows(table: Sequence[StageSpec], config: FlowConfig, until: str) -> list[StageSpec]:
    """The stages of a table that a run has, up to the last one of command `until`."""
    last = max(index for index, spec in enumerate(table) if spec.ends == until)
    return [spec for spec in table[: last + 1] if spec.wanted(config, until)]


def results(table: Sequence[StageSpec], run: Run, outputs: Outputs, until: str) -> RunSummary:
    """The result of a command that ends after a walk."""
    return run.results(
        *(output for spec in table if spec.ends == until for output in outputs.get(spec.name, {}).values())
    )


def work(
    spec: StageSpec, run: Run, config: FlowConfig, outputs: Outputs, labels: Sequence[str] | None = None
) -> Mapping[str, Output]:
    """One stage for each of its labels: its outputs by label, or by device where one output is of several.

    labels: in the place of the stage's own.
    """
    contexts = {label: Context(run, config, spec, label, outputs) for label in labels or spec.scope.labels(config)}
    found = _side_by_side(run, contexts) if spec.scope.side_by_side else _in_order(run, contexts)
    return spec.by_device(config, found)


def _in_order(run: Run, contexts: Mapping[str, Context]) -> dict[str, Output]:
    return {label: _task(run, context)(run, context) for label, context in contexts.items()}


def _side_by_side(run: Run, contexts: Mapping[str, Context]) -> dict[str, Output]:
    """All at once; the first failure counts once all have ended."""
    futures = {label: _task(run, context).submit(run, context) for label, context in contexts.items()}
    try:
        wait(list(futures.values()))
    except (KeyboardInterrupt, TerminationSignal):
        run.stop()
        _, late = wait(list(futures.values()), timeout=GRACE_SECONDS)
        run.devices.close()  # whoever waits for an agent is told so
        wait(list(late), timeout=STOP_SECONDS)
        raise
    return {label: future.result() for label, future in futures.items()}


def _retry_condition(run: Run) -> Callable[[Task[..., Any], TaskRun, State[Any]], bool]:
    """Tried again: stages whose agent was at fault, unless the run was interrupted."""

    def is_agents_fault(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        return isinstance(state.data, AgentError) and not run.is_interrupted()

    return is_agents_fault


def _task(run: Run, context: Context) -> Task[[Run, Context], Output]:
    """The Prefect task of one stage; its runs are called by stage and device."""
    retried: dict[str, Any] = {
        "retries": RETRIES,
        "retry_delay_seconds": exponential_backoff(backoff_factor=2),
        "retry_jitter_factor": 0.2,
        "retry_condition_fn": _retry_condition(run),
    }
    as_task = task(
        name=context.spec.name,
        task_run_name=context.title.replace("{", "{{").replace("}", "}}"),
        persist_result=False,
        cache_policy=NO_CACHE,
        **(retried if context.spec.agent else {}),
    )
    return as_task(_execute)


def _execute(run: Run, context: Context) -> Output:
    def body(out: Path, progress: Progress) -> StageResult:
        return context.spec.body(context, out, progress)

    spec = context.spec
    output = run.execute(spec.at(context), body)
    score = problem_named(spec.data(context.config).problem).score
    _show(spec, spec.by_device(context.config, {context.label: output}), output, score)
    return output


def _show(spec: StageSpec, outputs: Mapping[str, Output], output: Output, score: str) -> None:
    """A finished stage in Prefect: one line in the log, a summary, tables. outputs: by device. score: its name."""
    results = {device: one.result for device, one in outputs.items()}
    facts, logger = named_by(score, by_device(spec.facts, results)), get_run_logger()
    for line in output.mended:
        logger.warning(line)
    logger.info(line_of(output, facts))
    publish_stage(output, facts | named_by(score, by_device(spec.details, results)))
    if spec.winners is not None:
        for device, result in results.items():
            publish_winners(device, [named_by(score, row) for row in spec.winners(result)], spec.known)
