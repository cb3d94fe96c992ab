"""Opening the data of each kind, and their splits; the libraries of a kind are imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from importing import later_names
from tasks.base.errors import UserError
from tasks.data.problems import CLASSIFICATION, FIDELITY, OWN
from tasks.data.settings import DataSettings
from tasks.data.source import Source, Splits, check_labels, first_of

if TYPE_CHECKING:
    from tasks.data.boxes import coco, voc
    from tasks.data.dataset import Dataset, Split
    from tasks.data.drawn.digits import Digits, NoisyDigits
    from tasks.data.drawn.glyphs import GlyphPairs, Glyphs, GlyphScenes
    from tasks.data.folders import Folder, Published
    from tasks.data.image_and_motion import ImageAndMotion
    from tasks.data.own import OwnSamples
    from tasks.data.pairs import MaskedPictures, PairedPictures
    from tasks.data.parquet import Parquet
    from tasks.data.problems.fidelity import TrueClasses
    from tasks.data.signals import SeriesWindows, SynthesisedMotion, SynthesisedSounds, WavFolder
    from tasks.data.tables import TableSamples
    from tasks.data.texts import labelled_lines, sentences, tagged_lines, tagged_sentences
    from tasks.data.unlabelled import labelled, unlabelled
else:
    globals().update(later_names(__file__))

SOURCES: Mapping[str, Callable[[DataSettings], Source]] = MappingProxyType(
    {
        "digits": Digits,
        "noisy_digits": NoisyDigits,
        "glyphs": Glyphs,
        "noisy_glyphs": GlyphPairs,
        "small_glyphs": GlyphPairs,
        "glyph_scenes": GlyphScenes,
        "glyph_boxes": GlyphScenes,
        "sounds": SynthesisedSounds,
        "motion": SynthesisedMotion,
        "texts": sentences,
        "tagged_texts": tagged_sentences,
        "image_and_motion": ImageAndMotion,
        "imagefolder": Folder,
        "wavfolder": WavFolder,
        "series": SeriesWindows,
        "jsonl": labelled_lines,
        "tagged_jsonl": tagged_lines,
        "table": TableSamples,
        "parquet": Parquet,
        "torchvision": Published,
        "coco": coco,
        "voc": voc,
        "masks": MaskedPictures,
        "pairs": PairedPictures,
        "own": OwnSamples,
        "unlabelled": unlabelled,
    }
)
"""The source of each kind of data."""


def open_source(settings: DataSettings) -> tuple[Source, Splits]:
    """All samples, and the indices of each split. UserError for data that is missing, empty or malformed, or lacks a class."""
    source = SOURCES[settings.kind](settings)
    splits = source.splits(settings)
    if settings.class_order is not None and (settings.problem != FIDELITY.name or not _has_labelled(settings)):
        _put_in_order(source, settings.class_order, settings.problem)
    if source.has_classes and settings.own_problem is None:
        check_labels(source.labels, source.class_names, splits, settings)
    return source, splits


def _put_in_order(source: Source, order: Sequence[int], problem: str) -> None:
    """Number the classes as a network's outputs. order: the class of each output. UserError: it is no order of the classes."""
    names = source.class_names
    if problem != CLASSIFICATION.name or not source.class_names:
        raise UserError("data.class_order", f"data for {problem}", allowed="data with a class for each sample")
    if sorted(order) != list(range(len(names))):
        got = f"{list(order)} for {len(names)} classes ({first_of(names)})"
        raise UserError("data.class_order", got, allowed=f"each number from 0 to {len(names) - 1} once")
    source.class_names = tuple(names[number] for number in order)
    source.labels = np.argsort(order)[source.labels]


def load_splits(settings: DataSettings) -> dict[Split, Dataset]:
    """All three splits, opened once. UserError as `open_source`."""
    source, splits = open_source(settings)
    names: tuple[Split, ...] = ("train", "validation", "test")
    return {name: Dataset(settings, source, splits[name], name) for name in names}


def _has_labelled(settings: DataSettings) -> bool:
    """Whether there may be samples with targets beside those without."""
    return settings.labelled is not None or settings.kind == "own"


def load_labelled(settings: DataSettings, train: Dataset | None = None) -> Dataset | None:
    """Samples with targets, by which the true score is stated beside the fidelity; None: there are none.

    train: opened before, so that samples of the user's own are not opened again.
    """
    if settings.problem != FIDELITY.name or not _has_labelled(settings):
        return None
    source = labelled(settings, None if train is None else train.source)
    if source is None:
        return None
    if settings.class_order is not None:
        _put_in_order(source, settings.class_order, CLASSIFICATION.name)
    dataset = Dataset(settings.model_copy(update={"teacher": None}), source, np.arange(len(source.labels)))
    by_score = settings.own_problem is not None and settings.own_problem.score is not None
    dataset.problem = OWN.fitted(source) if by_score else TrueClasses()
    return dataset


def load(settings: DataSettings, split: Split) -> Dataset:
    """One split. UserError as `open_source`."""
    return load_splits(settings)[split]
