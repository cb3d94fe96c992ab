"""Images, sounds, motion, texts, and combinations of these, with targets: drawn or synthesised, or from files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from importing import public_names
from tasks.data.settings import RESTORED, DataSettings

if TYPE_CHECKING:
    from tasks.data.dataset import Batch, Dataset, EpochPart, Split
    from tasks.data.source import Source
else:
    __getattr__ = public_names(__name__, __file__)

Opened = tuple["Source", dict[str, np.ndarray]]

__all__ = ["Batch", "DataSettings", "Dataset", "EpochPart", "Split", "load", "load_splits"]


def _digits(settings: DataSettings) -> Opened:
    from tasks.data.drawn.digits import open_digits

    return open_digits(settings)


def _noisy_digits(settings: DataSettings) -> Opened:
    from tasks.data.drawn.digits import open_noisy_digits

    return open_noisy_digits(settings)


def _glyphs(settings: DataSettings) -> Opened:
    from tasks.data.drawn.glyphs import open_glyphs

    return open_glyphs(settings)


def _noisy_glyphs(settings: DataSettings) -> Opened:
    from tasks.data.drawn.glyphs import open_noisy_glyphs

    return open_noisy_glyphs(settings)


def _small_glyphs(settings: DataSettings) -> Opened:
    from tasks.data.drawn.glyphs import open_small_glyphs

    return open_small_glyphs(settings)


def _scenes(settings: DataSettings) -> Opened:
    from tasks.data.drawn.glyphs import open_scenes

    return open_scenes(settings)


def _coco(settings: DataSettings) -> Opened:
    from tasks.data.boxes import open_coco

    return open_coco(settings)


def _voc(settings: DataSettings) -> Opened:
    from tasks.data.boxes import open_voc

    return open_voc(settings)


def _masks(settings: DataSettings) -> Opened:
    from tasks.data.pairs import open_masks

    return open_masks(settings)


def _pairs(settings: DataSettings) -> Opened:
    from tasks.data.pairs import open_pairs

    return open_pairs(settings)


def _sounds(settings: DataSettings) -> Opened:
    from tasks.data.signals import open_sounds

    return open_sounds(settings)


def _wavfolder(settings: DataSettings) -> Opened:
    from tasks.data.signals import open_wavfolder

    return open_wavfolder(settings)


def _motion(settings: DataSettings) -> Opened:
    from tasks.data.signals import open_motion

    return open_motion(settings)


def _series(settings: DataSettings) -> Opened:
    from tasks.data.signals import open_series

    return open_series(settings)


def _sentences(settings: DataSettings) -> Opened:
    from tasks.data.texts import open_sentences

    return open_sentences(settings)


def _jsonl(settings: DataSettings) -> Opened:
    from tasks.data.texts import open_jsonl

    return open_jsonl(settings)


def _tagged_sentences(settings: DataSettings) -> Opened:
    from tasks.data.texts import open_tagged_sentences

    return open_tagged_sentences(settings)


def _tagged_jsonl(settings: DataSettings) -> Opened:
    from tasks.data.texts import open_tagged_jsonl

    return open_tagged_jsonl(settings)


def _seen_and_felt(settings: DataSettings) -> Opened:
    from tasks.data.seen_and_felt import open_seen_and_felt

    return open_seen_and_felt(settings)


def _table(settings: DataSettings) -> Opened:
    from tasks.data.tables import open_table

    return open_table(settings)


def _folder(settings: DataSettings) -> Opened:
    from tasks.data.folders import open_folder

    return open_folder(settings)


def _parquet(settings: DataSettings) -> Opened:
    from tasks.data.parquet import open_parquet

    return open_parquet(settings)


def _published(settings: DataSettings) -> Opened:
    from tasks.data.folders import open_published

    return open_published(settings)


OPENERS: dict[str, Callable[[DataSettings], Opened]] = {
    "digits": _digits,
    "noisy_digits": _noisy_digits,
    "glyphs": _glyphs,
    "noisy_glyphs": _noisy_glyphs,
    "small_glyphs": _small_glyphs,
    "glyph_scenes": _scenes,
    "glyph_boxes": _scenes,
    "sounds": _sounds,
    "imagefolder": _folder,
    "wavfolder": _wavfolder,
    "motion": _motion,
    "series": _series,
    "texts": _sentences,
    "jsonl": _jsonl,
    "tagged_texts": _tagged_sentences,
    "tagged_jsonl": _tagged_jsonl,
    "seen_and_felt": _seen_and_felt,
    "table": _table,
    "parquet": _parquet,
    "torchvision": _published,
    "coco": _coco,
    "voc": _voc,
    "masks": _masks,
    "pairs": _pairs,
}
"""Sources by kind; the libraries of a kind are imported only when it is chosen."""
CHECKED = ("coco", "voc", "masks", *RESTORED, "tagged_texts", "tagged_jsonl")
"""Kinds whose samples have no class of their own; their openers check the splits themselves."""


def load_splits(settings: DataSettings) -> dict[Split, Dataset]:
    """All three splits, opened once. Raises UserError for data that is missing, empty or malformed, or lacks a class."""
    from tasks.data.dataset import Dataset
    from tasks.data.source import check_classes

    source, splits = OPENERS[settings.kind](settings)
    if settings.kind not in CHECKED and settings.targets is None:
        check_classes(source, splits, settings)
    names: tuple[Split, ...] = ("train", "validation", "test")
    return {name: Dataset(settings, source, splits[name], name) for name in names}


def load(settings: DataSettings, split: Split) -> Dataset:
    """One split. Raises UserError as `load_splits` does."""
    return load_splits(settings)[split]
