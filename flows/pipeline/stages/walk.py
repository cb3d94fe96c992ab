"""One walk through a table of stages: each stage is a Prefect task, and devices are worked side by side.

Workers that share a run walk through the same table. If another worker is at a stage, a worker continues with the next stage
that does not need it, and comes back later.

Results live in our own store and are found there by key, so Prefect neither persists nor caches anything. Only stages that talk
to an agent are retried, with back-off; their measurements are kept, so a retry continues from there.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from flows.pipeline.pages import by_device, named_by
from flows.pipeline.pages.publish import line_of, publish_stage, publish_winners
from flows.pipeline.progress import Stopped
from flows.pipeline.results import run_metrics
from flows.pipeline.run import Output, Run, RunSummary
from flows.pipeline.stages.spec import Context, Outputs, StageSpec, rows
from flows.storage.sharing import StageElsewhere
from profiling_agents.messages import AgentError
from tasks.base.progress import Progress
from tasks.base.schemas.stored import StageResult
from tasks.data.problems import problem_named

RETRIES = 5
GRACE_SECONDS = 2.0
"""Time for stages on devices to end by themselves after an interruption."""
STOP_SECONDS = 30.0
"""Time for these stages to end once their agents are gone."""
WAIT_SECONDS = 1.0
"""Time between two checks of stages that other workers are at."""
DEVICE_TAG = "device:"
"""Prefix of task run tags: a Prefect concurrency limit on such a tag applies to one device, in all runs."""
FIRST = "check"
"""The stage that reports impossible settings before anything else is worked."""


def walk(
    table: Sequence[StageSpec],
    run: Run,
    config: FlowConfig,
    until: str,
    before: Callable[[str, Outputs], FlowConfig] | None = None,
) -> Outputs:
    """Work the stages of a table in order, up to the last stage of command `until`, and return their outputs.

    before: gives the config for a stage that begins; None: all have this one.
    """
    outputs: dict[str, Mapping[str, Output]] = {}
    specs = rows(table, config, until)
    run.progress.begin(sum(len(spec.scope.labels(config)) for spec in specs))
    waiting = {spec.name: _Labels(spec, run, config, outputs, logs=True) for spec in specs}
    while waiting:
        for name, labels in _ready(waiting):
            if before is not None:
                labels.config = before(name, outputs)
            if labels.work():
                outputs[name] = labels.found()
                del waiting[name]
                break
        else:
            _wait_for_others(run)
    return outputs


def _ready(waiting: Mapping[str, "_Labels"]) -> Iterator[tuple[str, "_Labels"]]:
    """The open stages, in order, that depend on no other open stage."""
    for name, labels in tuple(waiting.items()):
        if waiting.keys().isdisjoint((*labels.spec.needs, *labels.spec.reads)):
            yield name, labels
        if name == FIRST:
            return


def _wait_for_others(run: Run) -> None:
    if run.is_interrupted():
        run.locks.check()
        raise Stopped
    time.sleep(WAIT_SECONDS)


def results(table: Sequence[StageSpec], run: Run, outputs: Outputs, until: str) -> RunSummary:
    """The result of a command that ends after a walk."""
    return run.results(
        *(output for spec in table if spec.ends == until for output in outputs.get(spec.name, {}).values())
    )


def work(
    spec: StageSpec, run: Run, config: FlowConfig, outputs: Outputs, labels: Sequence[str] | None = None
) -> Mapping[str, Output]:
    """Work one stage for each of its labels. Outputs by label, or by device if one output covers several.

    labels: replace the stage's own.
    """
    asked = _Labels(spec, run, config, outputs, labels)
    while not asked.work():
        _wait_for_others(run)
    return asked.found()


class _Labels:
    """A stage for each of its labels; labels that other workers are at are left to them until they have finished or died."""

    def __init__(
        self,
        spec: StageSpec,
        run: Run,
        config: FlowConfig,
        outputs: Outputs,
        labels: Sequence[str] | None = None,
        *,
        logs: bool = False,
    ) -> None:
        """logs: whether the stage's numbers are logged to the pipeline run in MLflow."""
        self.spec, self._run, self.config, self._earlier = spec, run, config, outputs
        self._labels = tuple(labels or spec.scope.labels(config))
        self._logs = logs
        self._found: dict[str, Output] = {}
        self._keys: dict[str, tuple[str, str]] = {}
        self._holders: dict[str, str] = {}

    def work(self) -> bool:
        """Work the labels that nobody else is at; True once all are worked."""
        contexts = {
            label: Context(self._run, self.config, self.spec, label, self._earlier, logs=self._logs)
            for label in self._labels
            if label not in self._found
        }
        mine = {label: at for label, at in contexts.items() if not self._is_elsewhere(label, at)}
        if mine:
            if self.spec.scope.side_by_side:
                found = _side_by_side(self._run, mine)
            else:
                found = {label: _task(self._run, at)(self._run, at) for label, at in mine.items()}
            self._found |= {label: output for label, output in found.items() if output is not None}
        return len(self._found) == len(self._labels)

    def found(self) -> Mapping[str, Output]:
        """The outputs, once all labels are worked."""
        return self.spec.by_device(self.config, {label: self._found[label] for label in self._labels})

    def _is_elsewhere(self, label: str, at: Context) -> bool:
        """Whether another worker is at it; reported once. If a device does not answer, the task asks it again."""
        if not self._run.locks.have_others:
            return False
        with suppress(AgentError):
            if label not in self._keys:
                stage = self.spec.at(at)
                self._keys[label] = stage.name, stage.key()
            holder = self._run.locks.holder(*self._keys[label])
            if holder and self._holders.get(label) != holder:
                self._holders[label] = holder
                self._run.bars.console.print(f"{at.title}: {holder} is at it", markup=False, highlight=False)
                get_run_logger().info("%s: %s is at it", at.title, holder)
            return holder is not None
        return False


def _side_by_side(run: Run, contexts: Mapping[str, Context]) -> dict[str, Output | None]:
    """Work all at once; the first failure is raised after all have ended."""
    futures = {label: _task(run, context).submit(run, context) for label, context in contexts.items()}
    try:
        wait(list(futures.values()))
    except (KeyboardInterrupt, TerminationSignal):
        run.stop()
        _, late = wait(list(futures.values()), timeout=GRACE_SECONDS)
        run.devices.close()  # threads that wait for an agent get an error
        wait(list(late), timeout=STOP_SECONDS)
        raise
    return {label: future.result() for label, future in futures.items()}


def _task(run: Run, context: Context) -> Task[[Run, Context], Output | None]:
    """The Prefect task of one stage; its runs are named by stage and device, and tagged with the devices that they ask.

    A stage of an agent is retried if the agent was at fault and the run was not interrupted.
    """

    def is_agents_fault(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        return isinstance(state.data, AgentError) and not run.is_interrupted()

    retried: dict[str, Any] = {
        "retries": RETRIES,
        "retry_delay_seconds": exponential_backoff(backoff_factor=2),
        "retry_jitter_factor": 0.2,
        "retry_condition_fn": is_agents_fault,
    }
    as_task = task(
        name=context.spec.name,
        task_run_name=context.title.replace("{", "{{").replace("}", "}}"),
        persist_result=False,
        cache_policy=NO_CACHE,
        tags=[f"{DEVICE_TAG}{name}" for name in context.asked_devices],
        **(retried if context.spec.agent else {}),
    )
    return as_task(_execute)


def _execute(run: Run, context: Context) -> Output | None:
    """The stage's output; None: another worker is at it."""
    spec = context.spec

    def body(out: Path, progress: Progress) -> StageResult:
        return spec.body(context, out, progress)

    def tell(output: Output) -> None:
        for device, one in spec.by_device(context.config, {context.label: output}).items():
            run.tracker.log_series(run.tracker.run_id, run_metrics(spec.name, device, one.result))

    try:
        output = run.execute(spec.at(context), body, tell if context.logs else None)
    except StageElsewhere as elsewhere:
        get_run_logger().info("%s", elsewhere)
        return None
    data = spec.data(context.config)
    score = problem_named(data.problem, data.metric).score
    _show(spec, spec.by_device(context.config, {context.label: output}), output, score)
    return output


def _show(spec: StageSpec, outputs: Mapping[str, Output], output: Output, score: str) -> None:
    """Show a finished stage in Prefect: one line in the log, a summary, tables. outputs: by device. score: its name."""
    results = {device: one.result for device, one in outputs.items()}
    facts, logger = named_by(score, by_device(spec.facts, results)), get_run_logger()
    for line in output.mended:
        logger.warning(line)
    logger.info(line_of(output, facts))
    publish_stage(output, facts | named_by(score, by_device(spec.details, results)))
    if spec.winners is not None:
        for device, result in results.items():
            publish_winners(device, [named_by(score, row) for row in spec.winners(result)], spec.known)
