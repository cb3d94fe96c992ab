"""Opening the data of each kind, and their splits; the libraries of a kind are imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from importing import later_names
from tasks.data.settings import DataSettings
from tasks.data.source import Source, Splits, check_labels

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
    from tasks.data.signals import SeriesWindows, SynthesisedMotion, SynthesisedSounds, WavFolder
    from tasks.data.tables import TableSamples
    from tasks.data.texts import labelled_lines, sentences, tagged_lines, tagged_sentences
    from tasks.data.unlabelled import unlabelled
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
    if source.has_classes and settings.own_problem is None:
        check_labels(source.labels, source.class_names, splits, settings)
    return source, splits


def load_splits(settings: DataSettings) -> dict[Split, Dataset]:
    """All three splits, opened once. UserError as `open_source`."""
    source, splits = open_source(settings)
    names: tuple[Split, ...] = ("train", "validation", "test")
    return {name: Dataset(settings, source, splits[name], name) for name in names}


def load(settings: DataSettings, split: Split) -> Dataset:
    """One split. UserError as `open_source`."""
    return load_splits(settings)[split]
