"""Our own names in place of the names in a foreign model file.

Libraries write names into source text (torch.fx), into files of lines (ncnn) and into paths, and trust them. No library of
a backend sees a foreign name; results about a model carry the foreign names again.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from profiling_agents.backends.base import Model, ModelError, ModelMemoryError
from profiling_agents.messages import JobMessage, LayerTiming
from profiling_agents.sensing.pace import Runs

NameKind = Literal["node", "value", "dimension", "function", "layer", "blob"]
OWN = re.compile(r"(?:node|value|dimension|function|layer|blob)\d+_")
"""One of our names, alone or inside a longer name that a runtime made of it ("node7__nchwc", "node3__token_12")."""
WORD = re.compile(r"[A-Za-z0-9_.]*")
MAX_LAYER_NAME = 1024
LISTED = 8


class OwnNames:
    """Our names and the foreign names that they replace. Equal names stay equal, different names stay different."""

    def __init__(self) -> None:
        self._own: dict[tuple[NameKind, str], str] = {}
        self._foreign: dict[str, str] = {}

    def own(self, kind: NameKind, foreign: str) -> str:
        """Our name for a foreign name; the empty name, which means "none", stays empty."""
        if not foreign:
            return ""
        if (kind, foreign) not in self._own:
            name = f"{kind}{len(self._own)}_"
            self._own[kind, foreign] = name
            self._foreign[name] = foreign
        return self._own[kind, foreign]

    def known(self, kind: NameKind) -> list[str]:
        """All foreign names of one kind."""
        return [foreign for one, foreign in self._own if one == kind]

    def restored(self, text: str) -> str:
        """The text with our names replaced by the foreign names."""
        return OWN.sub(lambda match: self._foreign.get(match[0], match[0]), text)

    def job(self, job: JobMessage, kind: NameKind, inputs: Sequence[str] | None, outputs: Sequence[str]) -> JobMessage:
        """The job with our names. ModelError if a name is not an input or output of the file.

        inputs: all inputs of the file, and the job must feed each; None: the job may feed any of `outputs`.
        """
        known = set(outputs)
        wanted = job.output_names if inputs is not None else (*job.input_names, *job.output_names)
        where = "output" if inputs is not None else kind
        for name in wanted:
            if name not in known:
                raise ModelError(f"{where} '{name}' is not in the model; it has {', '.join(sorted(known)[:LISTED])}")
        if inputs is not None and set(inputs) != set(job.input_names):
            raise ModelError(f"inputs: the job states {job.input_names}; the model has {tuple(inputs)}")
        ours = {
            "input_names": tuple(self.own(kind, name) for name in job.input_names),
            "output_names": tuple(self.own(kind, name) for name in job.output_names),
        }
        return job.model_copy(update=ours)

    @contextmanager
    def restored_errors(self) -> Iterator[None]:
        """Replace our names by the foreign names in ModelErrors raised in the block."""
        try:
            yield
        except ModelMemoryError as error:
            raise ModelMemoryError(self.restored(str(error))) from error
        except ModelError as error:
            raise ModelError(self.restored(str(error))) from error


def word(text: str, where: str) -> str:
    """The text, if it is a plain word; ModelError otherwise. Libraries need operator types and domains as they are."""
    if not WORD.fullmatch(text):
        raise ModelError(f"{where} {text[:80]!a}: not a word; allowed: letters, digits, '_' and '.'")
    return text


class NamedModel:
    """A model that its runtime knows under our names; its layers and errors carry the names of the file."""

    def __init__(self, model: Model, names: OwnNames) -> None:
        self._model = model
        self._names = names
        self.on_cpu = model.on_cpu
        self.elsewhere = model.elsewhere

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """The inputs of the model."""
        return self._model.random_inputs(rng)

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float | None]:
        """The repeater of the model itself: nothing is added to the timed code."""
        with self._names.restored_errors():
            return self._model.repeater(inputs)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the model."""
        with self._names.restored_errors():
            return self._model.run(inputs)

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """The layers of the model, by their names in the file."""
        with self._names.restored_errors():
            layers = self._model.layers(inputs, runs)
        return [layer.model_copy(update=self._restored(layer)) for layer in layers]

    def _restored(self, layer: LayerTiming) -> Mapping[str, object]:
        outputs = tuple(self._names.restored(blob)[:MAX_LAYER_NAME] for blob in layer.outputs)
        return {"name": self._names.restored(layer.name)[:MAX_LAYER_NAME], "outputs": outputs}

    def close(self) -> None:
        """Free the model."""
        self._model.close()
