"""The protocol of a backend, as the child process uses it. The first axis of every array is the batch."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from pydantic import Field

from profiling_agents.messages import (
    AgentError,
    EngineOption,
    Format,
    JobMessage,
    LayerTiming,
    Message,
    Precision,
    RuntimeInfo,
    RuntimeSettings,
    Shape,
)
from profiling_agents.sensing.machine import Runs

OUT_OF_MEMORY = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "out of memory",
    "not enough memory",
    "can't allocate",
)
LEAST_RUNS = 5  # with layers timed


class ModelError(Exception):
    """The runtime refuses the model; the message is the reason (one line)."""


class ModelMemoryError(ModelError):
    """The model needs more memory than it may have."""


class RuntimeOptions(Message):
    """The options of a runtime; an agent fixes them when it starts."""

    backend: str
    threads: int = Field(ge=1)
    precision: Precision = "fp32"
    provider: str | None = None


def switch(name: str, does: str, off: RuntimeSettings, *, by_operator: bool = False) -> EngineOption:
    """An option that is on by default. off: the runtime settings that it changes when it is off."""
    sets = {"off": off}
    return EngineOption(name=name, choices=("on", "off"), default="on", does=does, by_operator=by_operator, sets=sets)


def powers_of_two(most: int) -> tuple[str, ...]:
    """1, 2, 4, … up to `most`."""
    return tuple(str(2**power) for power in range(most.bit_length()))


def thread_option(threads: int, setting: str) -> tuple[EngineOption, ...]:
    """An option to use fewer threads; empty if the runtime has only one. setting: the name of the thread count in its API."""
    if threads == 1:
        return ()
    fewer = [count for count in powers_of_two(threads) if int(count) < threads]
    does = "So many threads compute an operator: for small operators fewer are faster than all."
    sets: dict[str, RuntimeSettings] = {count: {setting: int(count)} for count in fewer}
    choices = (str(threads), *fewer[::-1])
    return (EngineOption(name="threads", choices=choices, default=choices[0], does=does, sets=sets),)


def require_cpu(options: RuntimeOptions) -> None:
    """AgentError for a provider that is not the CPU."""
    if options.provider not in (None, "cpu"):
        raise AgentError(f"--provider: got {options.provider}; backend '{options.backend}' runs on: cpu")


def require_fp32(options: RuntimeOptions) -> None:
    """AgentError for a precision other than fp32, in a backend that cannot set the precision."""
    if options.precision != "fp32":
        raise AgentError(
            f"--precision: got {options.precision}; backend '{options.backend}' runs models as they are: fp32"
        )


class Model(Protocol):
    """One loaded model. `on_cpu`: the threads of this process alone compute the model.

    `elsewhere`: another machine computes the model. The caches and the energy of that machine cannot be reached from here.
    """

    on_cpu: bool
    elsewhere: bool

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Inputs of the job's shapes: standard normal, zeros for integers (always valid indices)."""
        ...

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float | None]:
        """A function that runs the model n times on these inputs with as little overhead as possible.

        It returns the duration [s] by the device's own clock, or None if the host's clock suffices.
        """
        ...

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs in the order of the job's names."""
        ...

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """Each layer timed inside the model, in the order of execution, over these runs.

        ModelError when the runtime cannot time layers.
        """
        ...

    def close(self) -> None:
        """Free the model."""
        ...


class Backend(Protocol):
    """One inference runtime. `engine_options`: how it may run whole networks, with the threads that it has.

    `settings`: runtime settings of the default engine, applied before it runs a model.
    """

    formats: tuple[Format, ...]
    settings: RuntimeSettings
    engine_options: tuple[EngineOption, ...]

    def describe(self) -> RuntimeInfo:
        """Version and build of the runtime in use."""
        ...

    def load(self, files: Sequence[Path], job: JobMessage) -> Model:
        """Load a model from its stored files, to run with the job's engine; ModelError when the runtime refuses it."""
        ...


@contextmanager
def translated(runtime: str, step: str) -> Iterator[None]:
    """Turns every exception of a runtime into ModelError: runtimes raise exceptions without a common class."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        text = str(error)
        if isinstance(error, MemoryError) or any(sign in text.lower() for sign in OUT_OF_MEMORY):
            raise ModelMemoryError(step) from error
        raise ModelError(f"{runtime} cannot {step} the model: {text or type(error).__name__}") from error


def repeater_of(run: Callable[[], object]) -> Callable[[int], None]:
    """A function that calls `run` n times."""

    def repeat(runs: int) -> None:
        for _ in range(runs):
            run()

    return repeat


def random_arrays(shapes: Sequence[Shape], types: Sequence[np.dtype], rng: np.random.Generator) -> list[np.ndarray]:
    """Standard normal floats; zeros for all other types, since zero is always a valid index."""
    return [
        rng.standard_normal(shape).astype(dtype) if np.issubdtype(dtype, np.floating) else np.zeros(shape, dtype)
        for shape, dtype in zip(shapes, types, strict=True)
    ]


def interquartile_mean(samples: np.ndarray) -> np.ndarray:
    """Means over the middle half of the runs (runs, layers): as robust as the median, finer than a coarse clock."""
    ordered = np.sort(samples, axis=0)
    quarter = len(ordered) // 4
    middle: np.ndarray = ordered[quarter : len(ordered) - quarter].mean(axis=0)
    return middle


def library_hash(path: Path) -> str:
    """First 16 hex characters of the sha256 of a shared library; they identify the build."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def check_inputs(job: JobMessage, inputs: Sequence[np.ndarray]) -> None:
    """ModelError unless the inputs have the shapes that the job states."""
    got = tuple(array.shape for array in inputs)
    if got != job.input_shapes:
        raise ModelError(f"inputs {', '.join(job.input_names)}: got shapes {got}; the job states {job.input_shapes}")


def restore_shape(name: str, array: np.ndarray, shape: Shape) -> np.ndarray:
    """The output in the shape that the job states; ModelError when the sizes differ."""
    if array.size != int(np.prod(shape)):
        raise ModelError(f"output '{name}': the runtime gives shape {array.shape}; the job states {shape}")
    return array.reshape(shape)
