"""Samples of the user's own: a Dataset, a DataLoader, arrays, or a sequence, for each split or for all.

A sample is inputs and targets, inputs alone, or a dictionary with both; inputs and targets are tensors, several tensors, or
tensors by name. Networks take inputs as they are. Legend: B batch, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from adaptive_runtime.samples.inputs import GivenPreparation
from tasks.base.errors import UserError
from tasks.base.own_code import UserFunction
from tasks.data.batches import Inputs, Nested, concatenated
from tasks.data.settings import DataSettings
from tasks.data.source import UNSCALED, Scaling, Source, consecutive
from tasks.data.transforms import in_words, of_config, random_parts, steps_of

MOST_READ = 2000
"""Largest number of samples in which the largest number that is looked up is searched, if they are not in memory."""


@dataclass(frozen=True, slots=True)
class Data:
    """The samples of a run, by split.

    train: a map-style or iterable Dataset of torch, a DataLoader (its Dataset and its `collate_fn`), a sequence of samples,
    or arrays with the samples along the first axis: x, (x, y), or a dictionary by name. validation, test: likewise; None: a
    share of the training samples. inputs: the keys of inputs in samples that are dictionaries, in the order of the network's
    arguments; everything else is a target. For samples with several inputs without names: their names. classes: names of
    classes, if targets are classes. preparation: how an application makes a sample, for cards and bundles: words, a transform
    of torchvision or timm, or a configuration of `timm.data.resolve_data_config`; None: the attribute `transform` of a Dataset.
    labelled: samples with targets for the true score, if the targets of the others are a network's answers.
    """

    train: Any
    validation: Any = None
    test: Any = None
    inputs: Sequence[str] | None = None
    classes: Sequence[str] = ()
    preparation: Any = None
    labelled: Any = None


def data_of(given: Any, where: str) -> Data:
    """`Data` from what a function returns: `Data`, (train, validation, test), samples by split, or all samples."""
    if isinstance(given, Data):
        return given
    splits = [field.name for field in fields(Data)][:3]
    if isinstance(given, Mapping) and "train" in given:
        if unknown := [str(name) for name in given if name not in splits]:
            raise UserError(where, f"gives '{unknown[0]}'", allowed=", ".join(splits))
        return Data(**given)
    if isinstance(given, tuple) and 2 <= len(given) <= 3 and not any(map(_is_array, given)):
        return Data(*given)
    return Data(given)


def _is_array(one: Any) -> bool:
    return isinstance(one, np.ndarray | torch.Tensor)


class Samples:
    """The samples of a split, read by number. labels: their classes (N,) if these are known without reading samples."""

    def __init__(self, given: Any, where: str) -> None:
        self._collate = default_collate
        self._arrays: list[torch.Tensor] | None = None
        self.labels: np.ndarray | None = None
        if isinstance(given, DataLoader):
            self._collate = given.collate_fn or default_collate
            given = given.dataset
        if isinstance(given, IterableDataset):
            given = list(given)
        if _is_array(given) or (isinstance(given, tuple | list) and given and all(map(_is_array, given))):
            arrays = (given,) if _is_array(given) else given
            if len({len(one) for one in arrays}) == 1:
                self._form: Any = tuple
                self._set_arrays([torch.as_tensor(one) for one in arrays])
        elif isinstance(given, Mapping) and given and all(map(_is_array, given.values())):
            self._form = lambda parts: dict(zip(given, parts, strict=True))
            self._set_arrays([torch.as_tensor(one) for one in given.values()])
        if self._arrays is None and not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
            allowed = "a Dataset, a DataLoader, a sequence of samples, or arrays"
            raise UserError(where, f"gives {type(given).__name__}", allowed=allowed)
        self._given = given
        if self._arrays is None:
            self.labels = next(filter(None.__ne__, (_classes(getattr(given, n, None)) for n in LABELS)), None)
        if not len(self):
            raise UserError(where, "gives no samples", allowed="one sample or more")

    def _set_arrays(self, arrays: list[torch.Tensor]) -> None:
        self._arrays = arrays
        self.labels = _classes(arrays[-1]) if len(arrays) > 1 else None

    @property
    def transform(self) -> Any:
        """The attribute `transform` of the Dataset, or of the one that its Subset is of; None: it has none."""
        given = self._given
        while isinstance(given, Subset):
            given = given.dataset
        return getattr(given, "transform", None)

    @property
    def in_memory(self) -> bool:
        """Whether samples are slices of arrays."""
        return self._arrays is not None

    def __len__(self) -> int:
        return len(self._given) if self._arrays is None else len(self._arrays[0])

    def read(self, indices: Sequence[int], pool: ThreadPoolExecutor) -> Any:
        """A batch of these samples."""
        if self._arrays is not None:
            return self._form([one[torch.as_tensor(indices)] for one in self._arrays])
        return self._collate(list(pool.map(self._given.__getitem__, indices)))


LABELS = ("targets", "labels")
"""Attributes in which Datasets keep the classes of all samples."""


def _classes(given: Any) -> np.ndarray | None:
    """Classes (N,) int64; None if these are others."""
    if given is None or isinstance(given, str):
        return None
    try:
        found = np.asarray(given)
    except (ValueError, TypeError):  # ragged
        return None
    is_classes = found.ndim == 1 and found.dtype.kind in "iu" and len(found) and found.min() >= 0
    return found.astype(np.int64) if is_classes else None


class _Batch(NamedTuple):
    """Inputs by name ("" for a single one), and targets; None: there are none."""

    inputs: dict[str, torch.Tensor]
    targets: Nested | None


def function_of(option: str, name: str | None) -> UserFunction | None:
    """The user's function of an option of `problem`."""
    return None if name is None else UserFunction(f"problem.{option} '{name}'", name)


class OwnSamples(Source):
    """All samples of all splits, one split after the other.

    loss, score: the user's functions; None: those of another problem. has_targets: whether samples have targets.
    """

    has_classes = False

    def __init__(self, settings: DataSettings, data: Data | None = None) -> None:
        """data: the samples; None: those that the function in the settings gives. UserError: these cannot be read."""
        self._where = f"data.name '{settings.name}'" if settings.kind == "own" else f"data.path '{settings.path}'"
        self.data = self._called(settings) if data is None else data
        parts = {name: getattr(self.data, name) for name in ("train", "validation", "test")}
        self._parts = {name: Samples(one, f"{self._where}, {name}") for name, one in parts.items() if one is not None}
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="samples")
        self._names = tuple(settings.names or self.data.inputs or ())
        sizes = {name: len(one) for name, one in self._parts.items()}
        self._ends = np.cumsum(list(sizes.values()))
        self.given = consecutive(sizes)
        self.labels = self._labels()
        self.class_names = self._class_names(settings)
        self._example = self._batch(np.zeros(1, np.int64))
        self.has_targets = self._example.targets is not None
        self.scaling = self._scaling()
        self.notes = self._of_random_shares()
        problem = settings.own_problem
        self.loss = None if problem is None else function_of("loss", problem.loss)
        self.score = None if problem is None else function_of("score", problem.score)

    def _called(self, settings: DataSettings) -> Data:
        """The samples that the user's function gives."""
        assert settings.name is not None
        function = UserFunction(self._where, settings.name)
        if isinstance(function.function, Data):
            return function.function
        return data_of(function("data.options", "check data.options", **settings.options), self._where)

    def _labels(self) -> np.ndarray:
        """Classes of all samples, by which splits are stratified; all 0 if they are not known without reading samples."""
        known = [one.labels for one in self._parts.values()]
        if any(one is None or len(one) != len(part) for one, part in zip(known, self._parts.values(), strict=True)):
            return np.zeros(int(self._ends[-1]), np.int64)
        return np.concatenate([one for one in known if one is not None])

    def _class_names(self, settings: DataSettings) -> tuple[str, ...]:
        if self.data.classes:
            return tuple(map(str, self.data.classes))
        count = settings.classes or (int(self.labels.max()) + 1 if self.labels.any() else 0)
        return tuple(map(str, range(count)))

    def _scaling(self) -> Scaling:
        """The inputs as they are."""
        prepared = {name: self._prepared(name, one) for name, one in self._example.inputs.items()}
        if len(prepared) == 1:
            return UNSCALED._replace(given=next(iter(prepared.values())))
        return UNSCALED._replace(inputs=prepared)

    def _prepared(self, name: str, one: torch.Tensor) -> GivenPreparation:
        shape = tuple(one.shape[1:])
        words = None if one.is_floating_point() else self._largest(name) + 1
        transform = self._transform if words is None and len(self._example.inputs) == 1 else None
        steps = None if transform is None else steps_of(transform, shape)
        own = self.data.preparation if isinstance(self.data.preparation, str) else ""
        return GivenPreparation(
            shape=shape,
            size=shape,
            dtype="float32" if words is None else "int64",
            words=words,
            described=own if transform is None or steps is not None else in_words(transform),
            pictures=steps,
        )

    @property
    def _transform(self) -> Any:
        """The transform that an application applies, too: the given one, or that of a split without random parts."""
        given = self.data.preparation
        if isinstance(given, str):
            return None
        if given is not None:
            return of_config(given) if isinstance(given, Mapping) else given
        found = (self._parts[name].transform for name in ("test", "validation", "train") if name in self._parts)
        return next((one for one in found if one is not None and not random_parts(one)), None)

    def _of_random_shares(self) -> tuple[str, ...]:
        """A line if samples for validation or tests are shares of samples that are drawn at random."""
        shares = [name for name in ("validation", "test") if name not in self._parts]
        transform = self._parts["train"].transform
        drawn = [] if transform is None else random_parts(transform)
        if not (shares and drawn):
            return ()
        got = f"{' and '.join(shares)} samples are shares of the training samples, whose transform draws at random"
        remedy = "for steady scores give these without: autotailor.Data(train, validation, test)"
        return (f"data: {got} ({', '.join(drawn)}); {remedy}",)

    def _largest(self, name: str) -> int:
        """The largest number of an input that is looked up."""
        count = int(self._ends[-1])
        read = np.arange(count if all(one.in_memory for one in self._parts.values()) else min(count, MOST_READ))
        return max(int(self._batch(part).inputs[name].max()) for part in np.array_split(read, max(1, len(read) // 256)))

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """The inputs, as the user's code gives them; a Dataset augments its samples itself."""
        return _inputs(self._batch(indices))

    def labelled(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[Inputs, Any]:
        """Inputs and targets; targets without numbers (B, 0) if samples have none."""
        batch = self._batch(indices)
        return _inputs(batch), torch.zeros(len(indices), 0) if batch.targets is None else batch.targets

    def _batch(self, indices: np.ndarray) -> _Batch:
        """Samples of several splits in their order. UserError: they cannot be read, or have another form."""
        parts = np.searchsorted(self._ends, indices, side="right")
        first = np.concatenate([[0], self._ends[:-1]])
        names = list(self._parts)
        if len(set(parts.tolist())) <= 1:
            own = int(parts[0])
            return self._read(names[own], (indices - first[own]).tolist())
        batches = [
            self._read(names[part], [index - first[part]])
            for part, index in zip(parts.tolist(), indices.tolist(), strict=True)
        ]
        targets = [one.targets for one in batches if one.targets is not None]
        return _Batch(concatenated([one.inputs for one in batches]), concatenated(targets) if targets else None)

    def _read(self, split: str, indices: Sequence[int]) -> _Batch:
        where = f"{self._where}, {split}"
        try:
            given = self._parts[split].read(indices, self._pool)
        except Exception as error:  # the user's code
            raise UserError(
                where, f"sample {indices[0]} cannot be read ({type(error).__name__}: {error})", next_step="mend it"
            ) from error
        inputs, targets = self._divided(given, where)
        return _Batch(self._named(inputs, where), None if targets is None else _targets(targets, where))

    def _divided(self, given: Any, where: str) -> tuple[Any, Any]:
        """Inputs, and targets or None."""
        if isinstance(given, Mapping):
            missing = [name for name in self._names if name not in given]
            if missing or not self._names:
                got = f"samples are dictionaries with {', '.join(map(str, given))}"
                raise UserError(where, got, next_step="name the inputs in the network's order: data.names=[NAME,NAME]")
            rest = {str(name): one for name, one in given.items() if name not in self._names}
            inputs = {name: given[name] for name in self._names}
            return inputs, next(iter(rest.values())) if len(rest) == 1 else rest or None
        if _is_array(given):
            return given, None
        if isinstance(given, tuple | list) and len(given) in (1, 2):
            return given[0], given[1] if len(given) == 2 else None
        if isinstance(given, tuple | list) and 0 < len(self._names) < len(given):
            count = len(self._names)
            return tuple(given[:count]), given[count] if len(given) == count + 1 else tuple(given[count:])
        got = f"{len(given)} parts" if isinstance(given, tuple | list) else type(given).__name__
        raise UserError(
            where,
            f"a sample is {got}",
            allowed="inputs and targets, inputs alone, or a dictionary",
            next_step="with more parts, name the inputs: data.names=[NAME,NAME]",
        )

    def _named(self, given: Any, where: str) -> dict[str, torch.Tensor]:
        if isinstance(given, Mapping):
            found = {str(name): one for name, one in given.items()}
            found = (
                {name: found[name] for name in self._names} if self._names and set(self._names) <= set(found) else found
            )
        elif _is_array(given):
            found = {self._names[0] if len(self._names) == 1 else "": given}
        elif isinstance(given, tuple | list):
            names = self._names or tuple(f"input_{number}" for number in range(len(given)))
            if len(names) != len(given):
                raise UserError(where, f"{len(given)} inputs", allowed=f"{len(names)}: {', '.join(names)}")
            found = dict(zip(names, given, strict=True))
        else:
            raise UserError(where, f"inputs are {type(given).__name__}", allowed="tensors")
        return {name: _input(torch.as_tensor(one)) for name, one in found.items()}


def _inputs(batch: _Batch) -> Inputs:
    found = tuple(batch.inputs.values())
    return found[0] if len(found) == 1 else found


def _input(one: torch.Tensor) -> torch.Tensor:
    """Numbers in float32; whole numbers of samples with at most one axis, which are looked up, in int64."""
    if one.is_floating_point() or one.ndim > 2:
        return one.to(torch.float32)
    return one.to(torch.int64)


def _targets(given: Any, where: str) -> Nested:
    """Targets in torch; float64 becomes float32."""
    if isinstance(given, Mapping):
        return {str(name): _target(one, where) for name, one in given.items()}
    if isinstance(given, tuple | list):
        return tuple(map(partial(_target, where=where), given))
    return _target(given, where)


def _target(one: Any, where: str) -> torch.Tensor:
    try:
        found = torch.as_tensor(one)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(where, f"a target is {type(one).__name__}", allowed="numbers of one shape") from error
    return found.float() if found.dtype in (torch.float64, torch.float16) else found
