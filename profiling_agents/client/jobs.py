"""Models as a client sends them, and the errors of sending and running them."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from pydantic import ValidationError

from profiling_agents.messages import DEFAULT_ENGINE, AgentError, Engine, Format, JobMessage, Shape, one_line

BATCH_JOBS = 16
BATCH_BYTES = 64 << 20


class ModelTooLargeError(AgentError):
    """The agent does not take models of this size."""


class RunError(AgentError):
    """The device answers, but could not run the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJob:
    """A model to run. Files: ONNX (model,), ncnn (param, bin), executorch (program,). Shapes count the batch axis (ncnn: 1).

    `output_shapes` restores shapes that the runtime does not keep; without them ncnn's outputs get a batch axis of 1.
    `engine`: engine of this job alone; None: the client's.
    """

    key: str
    format: Format
    files: tuple[bytes, ...]
    input_names: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    output_names: tuple[str, ...]
    output_shapes: tuple[Shape, ...] | None = None
    engine: Engine | None = None

    def message(self, engine: Engine = DEFAULT_ENGINE) -> JobMessage:
        """The job as a message, with digests instead of files. AgentError when the job contradicts itself.

        engine: used if the job has no engine of its own.
        """
        try:
            digests = tuple(hashlib.sha256(content).hexdigest() for content in self.files)
            own = {"files": digests, "engine": engine if self.engine is None else self.engine}
            return JobMessage.model_validate({one.name: getattr(self, one.name) for one in fields(self)} | own)
        except ValidationError as error:
            raise AgentError(f"job '{self.key}': {one_line(error)}") from error


def batches(jobs: Iterable[ModelJob], batch_bytes: int) -> Iterator[list[ModelJob]]:
    """Groups of at most BATCH_JOBS jobs and about `batch_bytes` of models, built lazily."""
    batch: list[ModelJob] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += sum(map(len, job.files))
        if len(batch) == BATCH_JOBS or size >= batch_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
