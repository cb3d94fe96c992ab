"""The base classes of backends and their models, as the child process uses them. The first axis of every array is the batch."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from pydantic import Field

from profiling_agents import messages
from profiling_agents.backends.sanitized_names import ModelError, ModelMemoryError, SanitizedNames
from profiling_agents.sensing.machine import Runs

OUT_OF_MEMORY = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "out of memory",
    "not enough memory",
    "can't allocate",
)
LEAST_RUNS = messages.LAYER_RUNS
UNINTERRUPTED = 1.25  # times the layer's median
LARGEST_ROUNDING = 0.05
"""Relative to the largest output; a larger difference is another computation, not rounding."""
MAX_LAYER_NAME = 1024


class RuntimeOptions(messages.Message):
    """The options of a runtime; an agent fixes them when it starts."""

    backend: str
    threads: int = Field(ge=1)
    precision: messages.Precision = "fp32"
    provider: str | None = None


def switch(name: str, does: str, off: messages.RuntimeSettings, *, by_operator: bool = False) -> messages.EngineOption:
    """An option that is on by default. off: the runtime settings that it changes when it is off."""
    sets = {"off": off}
    return messages.EngineOption(
        name=name, choices=("on", "off"), default="on", does=does, by_operator=by_operator, sets=sets
    )


def powers_of_two(most: int) -> tuple[str, ...]:
    """1, 2, 4, … up to `most`."""
    return tuple(str(2**power) for power in range(most.bit_length()))


def thread_option(threads: int, setting: str) -> tuple[messages.EngineOption, ...]:
    """An option to use fewer threads; empty if the runtime has only one. setting: the name of the thread count in its API."""
    if threads == 1:
        return ()
    fewer = [count for count in powers_of_two(threads) if int(count) < threads]
    does = "So many threads compute an operator: for small operators fewer are faster than all."
    sets: dict[str, messages.RuntimeSettings] = {count: {setting: int(count)} for count in fewer}
    choices = (str(threads), *fewer[::-1])
    return (messages.EngineOption(name="threads", choices=choices, default=choices[0], does=does, sets=sets),)


def require_cpu(options: RuntimeOptions) -> None:
    """AgentError for a provider that is not the CPU."""
    if options.provider not in (None, "cpu"):
        raise messages.AgentError(f"--provider: got {options.provider}; backend '{options.backend}' runs on: cpu")


def require_fp32(options: RuntimeOptions) -> None:
    """AgentError for a precision other than fp32, in a backend that cannot set the precision."""
    if options.precision != "fp32":
        raise messages.AgentError(
            f"--precision: got {options.precision}; backend '{options.backend}' runs models as they are: fp32"
        )


class Model(ABC):
    """One loaded model, which its runtime knows under our names; its layers and errors carry the names of the file.

    on_cpu: the threads of this process alone compute the model. elsewhere: another machine computes it, whose caches and energy
    cannot be reached from here. runtime: its name in errors.
    """

    on_cpu = True
    elsewhere = False
    runtime: str

    def __init__(self, job: messages.JobMessage, types: Mapping[str, np.dtype], names: SanitizedNames) -> None:
        """job: with our names. types: of the inputs by their names in the job."""
        self._job, self._types, self._names = job, types, names

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Inputs of the job's shapes: standard normal floats; zeros for all other types, since zero is always a valid index."""
        types = [self._types[name] for name in self._job.input_names]
        return [
            rng.standard_normal(shape).astype(dtype) if np.issubdtype(dtype, np.floating) else np.zeros(shape, dtype)
            for shape, dtype in zip(self._job.input_shapes, types, strict=True)
        ]

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float | None]:
        """A function that runs the model n times on these inputs with as little overhead as possible.

        It returns the duration [s] by the device's own clock, or None if the host's clock suffices.
        """
        with self._names.restored_errors(), translated(self.runtime, "run"):
            self._check(inputs)
            return self._repeater(inputs)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs in the order of the job's names: as the runtime gives them, or in the job's output shapes."""
        with self._names.restored_errors(), translated(self.runtime, "run"):
            self._check(inputs)
            outputs = self._outputs(inputs)
            if self._job.output_shapes is None:
                return outputs
            named = zip(self._job.output_names, outputs, self._job.output_shapes, strict=True)
            return [_in_shape(name, array, shape) for name, array, shape in named]

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[messages.LayerTiming]:
        """Each layer timed inside the model, in the order of execution, over these runs.

        ModelError when the runtime cannot time layers.
        """
        with self._names.restored_errors(), translated(self.runtime, "profile"):
            layers = self._layers(inputs, runs)
        return [layer.model_copy(update=self._restored(layer)) for layer in layers]

    @abstractmethod
    def close(self) -> None:
        """Free the model."""

    @abstractmethod
    def _repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float | None]: ...

    @abstractmethod
    def _outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]: ...

    @abstractmethod
    def _layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[messages.LayerTiming]: ...

    def _check(self, inputs: Sequence[np.ndarray]) -> None:
        """ModelError unless the inputs have the shapes that the job states, and the model's types."""
        names, shapes = self._job.input_names, self._job.input_shapes
        if (got := tuple(array.shape for array in inputs)) != shapes:
            raise ModelError(f"inputs {', '.join(names)}: got shapes {got}; the job states {shapes}")
        for name, array in zip(names, inputs, strict=True):
            if array.dtype != self._types[name]:
                raise ModelError(f"input '{name}': got {array.dtype}; the model takes {self._types[name]}")

    def _restored(self, layer: messages.LayerTiming) -> Mapping[str, object]:
        outputs = tuple(self._names.restored(blob)[:MAX_LAYER_NAME] for blob in layer.outputs)
        return {"name": self._names.restored(layer.name)[:MAX_LAYER_NAME], "outputs": outputs}


def _in_shape(name: str, array: np.ndarray, shape: messages.Shape) -> np.ndarray:
    if array.size != int(np.prod(shape)):
        raise ModelError(f"output '{name}': the runtime gives shape {array.shape}; the job states {shape}")
    return array.reshape(shape)


class Backend(ABC):
    """One inference runtime. engine_options: how it may run whole networks, with the threads that it has.

    settings: runtime settings of the default engine, applied before it runs a model. precisions: in which it computes here.
    """

    name: str
    formats: tuple[messages.Format, ...]
    settings: messages.RuntimeSettings
    engine_options: tuple[messages.EngineOption, ...] = ()
    precision: messages.Precision = "fp32"
    precisions: tuple[messages.Precision, ...] = ("fp32",)
    arithmetic: messages.Precision | None = None
    provider: str = "cpu"
    accelerator: str | None = None

    def describe(self) -> messages.RuntimeInfo:
        """Version and build of the runtime in use, and how it computes."""
        version, build = self.version_and_build()
        own = {
            name: getattr(self, name)
            for name in messages.RuntimeInfo.model_fields
            if name not in ("backend", "version", "build")
        }
        return messages.RuntimeInfo(backend=self.name, version=version, build=build, **own)

    @abstractmethod
    def version_and_build(self) -> tuple[str, str]:
        """The runtime's version, and what identifies the build that computes, such as the hash of its library."""

    @abstractmethod
    def load(self, files: Sequence[Path], job: messages.JobMessage) -> Model:
        """Load a model from its stored files, to run with the job's engine; ModelError when the runtime refuses it."""


@contextmanager
def translated(runtime: str, step: str) -> Iterator[None]:
    """Turns every exception of a runtime into ModelError: runtimes raise exceptions without a common class."""
    try:
        yield
    except (ModelError, messages.AgentError):
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


def interquartile_mean(samples: np.ndarray) -> np.ndarray:
    """Means over the middle half of the runs (runs, layers): as robust as the median, finer than a coarse clock."""
    ordered = np.sort(samples, axis=0)
    quarter = len(ordered) // 4
    middle: np.ndarray = ordered[quarter : len(ordered) - quarter].mean(axis=0)
    return middle


def uninterrupted_mean(rows: np.ndarray, errors: np.ndarray | float) -> np.ndarray:
    """Mean times (layers,) over the runs in which the layer was not interrupted. rows (runs, layers); errors: of the clock."""
    counted = rows <= UNINTERRUPTED * np.median(rows, axis=0).clip(min=0.0) + errors
    means: np.ndarray = np.sum(rows, axis=0, where=counted) / counted.sum(axis=0).clip(min=1)
    return means


def rounded_precisions(outputs: Mapping[messages.Precision, Sequence[np.ndarray]]) -> tuple[messages.Precision, ...]:
    """fp32, and the precisions whose outputs all differ from fp32 by rounding alone. outputs: of a model by precision."""

    def is_rounded(output: np.ndarray, reference: np.ndarray) -> bool:
        difference = float(np.abs(output - reference).max() / np.abs(reference).max())
        return 0.0 < difference <= LARGEST_ROUNDING

    exact = outputs["fp32"]
    return ("fp32", *(precision for precision, found in outputs.items() if all(map(is_rounded, found, exact))))


def library_hash(path: Path) -> str:
    """First 16 hex characters of the sha256 of a shared library; they identify the build."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
