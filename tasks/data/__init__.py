"""Images, sounds, motion, texts, and combinations of these, with targets: drawn or synthesised, or from files."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.data.dataset import Batch, Dataset, EpochPart, Split
    from tasks.data.loading import load, load_splits, open_source
    from tasks.data.settings import DataSettings
else:
    __getattr__ = public_names(__name__, __file__)
