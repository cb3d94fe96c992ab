"""A camera sees a character, and an accelerometer feels how the device moves: a class is a character and a kind of motion.

Neither input alone decides the class: an image leaves as many classes as there are motions, a motion as many as there are
characters. Everything about sample number i follows from the seed and i; the classes take turns. Legend: B batch, A three axes,
T samples of a signal, D draws.
"""

import numpy as np
import torch

from adaptive_runtime.samples.inputs import NumbersPreparation
from tasks.data.batches import Inputs
from tasks.data.drawn.glyphs import Glyphs
from tasks.data.settings import DataSettings
from tasks.data.signals.synthesised import ACTIVITIES, AXES, SynthesisedMotion
from tasks.data.source import UNSCALED, Source

MOTIONS = ("walking", "upstairs", "cycling")
CHARACTERS = 4
IMAGE, MOTION = "image", "motion"
MEAN_G = (0.0, 0.0, 0.8)
"""Mean of gravity on a slightly turned device [g]."""


class ImageAndMotion(Source):
    """Images of `tasks.data.drawn.glyphs` beside signals of `tasks.data.signals.synthesised`, in g; both synthesised."""

    def __init__(self, settings: DataSettings) -> None:
        drawn = settings.model_copy(update={"classes": settings.classes or CHARACTERS})
        self._glyphs = Glyphs(drawn)
        # another seed than the image's, and labels among all motions
        self._motion = SynthesisedMotion(drawn.model_copy(update={"classes": None, "seed": settings.seed + 1}))
        characters = self._glyphs.class_names
        self.class_names = tuple(f"{character} {motion}" for character in characters for motion in MOTIONS)
        self.labels = np.arange(settings.images, dtype=np.int64) % len(self.class_names)
        self._glyphs.labels = self.labels // len(MOTIONS)
        known = np.array([list(ACTIVITIES).index(motion) for motion in MOTIONS])
        self._motion.labels = known[self.labels % len(MOTIONS)]
        shape = (AXES, self._motion.spectrogram.samples)
        motion = NumbersPreparation(names=("x", "y", "z"), shape=shape, mean=MEAN_G, deviation=(1.0,) * AXES)
        self.scaling = UNSCALED._replace(inputs={IMAGE: None, MOTION: motion})

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """Images (B, C, H, W) and motion (B, A, T); `draws` (B, D) change both a little."""
        felt_BAT = self._motion.signals(indices, draws)
        return self._glyphs.images(indices, draws), torch.from_numpy(felt_BAT)
