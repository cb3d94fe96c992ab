"""The worker's side: JSON in, JSON out, so that only the name of one of our functions is pickled."""

import json
from functools import cache
from importlib.metadata import version

from pydantic import Field

from flows.pipeline.versions import code_version
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Record
from tasks.evaluation.batches import EvaluationBatch, evaluate_batch
from tasks.evaluation.quantise import Int8
from tasks.evaluation.settings import Settings as QuantiseSettings

MODULES = ("tasks.evaluation.batches", "tasks.evaluation.quantise")
"""The modules that evaluate, including all their imports."""
LIBRARIES = ("torch", "onnxruntime")
"""The libraries that compute."""
AccuracyFields = tuple[int | float, int, float, str, str, list[list[int]] | None]


class WorkerTask(Record):
    """A batch for a worker. versions: of the driver's code and libraries. int8: settings if SubNets are evaluated in int8."""

    versions: dict[str, str]
    batch: EvaluationBatch
    int8: QuantiseSettings | None


class WorkerAnswer(Record):
    """The fields of each SubNet's `tasks.evaluation.subnets.Accuracy` by digest, or the reason why there are none."""

    accuracies: dict[str, AccuracyFields] = Field(default_factory=dict)
    error: str = ""


@cache
def versions() -> dict[str, str]:
    """The versions in this process that accuracies depend on."""
    return {"autotailor's code": code_version(*MODULES), **{name: version(name) for name in LIBRARIES}}


def evaluate(task: str) -> str:
    """The `WorkerAnswer` to a `WorkerTask`; if the versions differ, the rest of the task is not parsed."""
    try:
        wanted = json.loads(task)["versions"]
        for name, own in versions().items():
            if own != wanted.get(name):
                of_run = f"{wanted.get(name, 'none')}, that of the run"
                raise UserError(name, f"version {own}", allowed=of_run, next_step="install the same on both sides")
        asked = WorkerTask.model_validate_json(task)
        found = evaluate_batch(asked.batch, None if asked.int8 is None else Int8(asked.int8))
    except UserError as error:
        return WorkerAnswer(error=str(error)).model_dump_json()
    return WorkerAnswer(accuracies={digest: tuple(one) for digest, one in found.items()}).model_dump_json()
