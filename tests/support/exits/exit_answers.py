"""Answers of exits that get better along a made network."""

import numpy as np

from tasks.exits import HeldOut

LATENCY_MS = np.array([1.0, 2.0, 4.0])
STRENGTHS = np.array([3.5, 4.5, 6.0])


def drawn_held_out(seed: int, images: int, strengths: np.ndarray = STRENGTHS, classes: int = 6) -> HeldOut:
    """Images of different difficulty; an exit's logits are noise, and its strength at the label."""
    rng = np.random.default_rng(seed)
    labels_N = rng.integers(0, classes, images)
    logits_NEK = rng.normal(size=(images, len(strengths), classes))
    ease_N = 1.6 * rng.random(images)
    logits_NEK[np.arange(images), :, labels_N] += ease_N[:, None] * strengths
    return HeldOut(logits_NEK=1.5 * logits_NEK, labels_N=labels_N, latency_ms_E=LATENCY_MS[: len(strengths)])


def agreeing(images: int, exits: int = 3) -> HeldOut:
    """All exits have all images right, and are not equally sure of all."""
    labels_N = np.arange(images) % 3
    logits_NEK = np.eye(3)[labels_N][:, None] * np.linspace(1, 5, images)[:, None, None]
    return HeldOut(
        logits_NEK=np.repeat(logits_NEK, exits, 1), labels_N=labels_N, latency_ms_E=np.arange(1.0, exits + 1)
    )
