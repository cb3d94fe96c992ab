"""The data from which thresholds are found: logits of all exits on holdout images, and the latency of each exit."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.exits import ConfidenceMeasure, trace
from tasks.base.errors import UserError
from tasks.exits.path import ExitAnswers


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOut:
    """Logits, labels and latencies for N images, E exits, K classes. UserError: shapes or values do not fit.

    latency_ms_E: measured from the input to each exit's answer. names: names of the exits for error messages; numbers if empty.
    """

    logits_NEK: NDArray[Any]
    labels_N: NDArray[np.int64]
    latency_ms_E: NDArray[np.float64]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_values(self)

    def __len__(self) -> int:
        return len(self.labels_N)

    def rows(self, chosen: NDArray[np.int64]) -> "HeldOut":
        """The same data for some of the images."""
        return replace(self, logits_NEK=self.logits_NEK[chosen], labels_N=self.labels_N[chosen])

    @property
    def right_NE(self) -> NDArray[np.int64]:
        """1 if the exit's own answer is the label, else 0."""
        return (self.logits_NEK.argmax(2) == self.labels_N[:, None]).astype(np.int64)

    def answers(self, measure: ConfidenceMeasure, full_exit: int) -> ExitAnswers:
        """Confidences by a measure, and losses against the full answer, up to the exit that gives it."""
        upto = full_exit + 1
        answers_NE, confidences_NE = trace(measure, self.logits_NEK[:, :upto])
        answers_NE[:, full_exit] = self.logits_NEK[:, full_exit].argmax(1)
        right_NE = (answers_NE == self.labels_N[:, None]).astype(np.int64)
        return ExitAnswers(confidences_NE, right_NE[:, full_exit:] - right_NE)


def check_exits(held_out: HeldOut) -> None:
    """Raise UserError if an exit gives the same answer to all images."""
    answers_NE = held_out.logits_NEK.argmax(2)
    if len(np.unique(held_out.labels_N)) > 1:
        for place, same in enumerate((answers_NE == answers_NE[0]).all(0)):
            if same:
                raise UserError(
                    f"exit {held_out.names[place] if held_out.names else place}",
                    f"answers class {answers_NE[0, place]} to all {len(held_out)} images",
                    next_step="train it longer, or leave it out",
                )


def _check_shapes(held_out: HeldOut) -> None:
    shape = held_out.logits_NEK.shape
    if len(shape) != 3 or not shape[0] or not shape[1]:
        raise UserError("exits", f"logits of shape {shape}", allowed="(images, exits, classes)")
    if shape[2] < 2:
        raise UserError("exits", f"{shape[2]} class of answers", allowed="classifiers with two or more")
    for name, got, expected in (
        ("labels", held_out.labels_N.shape, shape[:1]),
        ("latency_ms", held_out.latency_ms_E.shape, shape[1:2]),
    ):
        if got != expected:
            raise UserError("exits", f"{name} of shape {got}", allowed=f"{expected}, as the logits of shape {shape}")


def _check_values(held_out: HeldOut) -> None:
    classes, labels_N, latency_ms_E = held_out.logits_NEK.shape[2], held_out.labels_N, held_out.latency_ms_E
    if labels_N.min() < 0 or labels_N.max() >= classes:
        got = f"labels from {labels_N.min()} to {labels_N.max()}"
        next_step = "take held-out images of the data that the network was trained for"
        raise UserError("exits", got, allowed=f"0 to {classes - 1}, the network's classes", next_step=next_step)
    if not np.isfinite(held_out.logits_NEK).all():
        raise UserError("exits", "logits that are no numbers", next_step="train the exits again")
    if not (np.isfinite(latency_ms_E) & (latency_ms_E > 0)).all():
        raise UserError("exits", f"latencies {latency_ms_E.tolist()}", allowed="positive numbers [ms]")
