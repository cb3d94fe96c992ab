"""The accuracy of one network as a line in a file, and confusions between classes on samples of the test split.

Legend: K classes, N samples.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from tailor_ir import Config
from tasks.base.artifacts import append_line, read_lines
from tasks.base.pages.text import percent
from tasks.base.progress import Progress
from tasks.data.problems import Tallied
from tasks.data.source import first_of

CONFUSIONS_FILE = "confusions.jsonl"
MOST_CLASSES = 64
"""With more classes a picture shows nothing."""
MOST_NAMED = 4
BASE = "base"
"""Name in a line for the network that a SuperNet is made of, which is not a SubNet."""


class Confusions(TypedDict):
    """A line of the file. confusion: samples by class (rows) and answer (columns), (K, K). digest: of a SubNet, or `BASE`."""

    digest: str
    classes: list[str]
    confusion: list[list[int]]


def confusion_of(found: Tallied) -> list[list[int]] | None:
    """Samples by class and answer (K, K); None if the learning problem has no confusions, or there are too many classes."""
    if found.confusion_KK is None or len(found.confusion_KK) > MOST_CLASSES:
        return None
    return found.confusion_KK.tolist()


def append_confusions(file: Path, digest: str, classes: Sequence[str], confusion: list[list[int]] | None) -> None:
    """Append a line for a network with confusions of `confusion_of`; nothing for None."""
    if confusion is not None:
        append_line(file, Confusions(digest=digest, classes=list(classes), confusion=confusion))


def read_confusions(file: Path) -> dict[str, Confusions]:
    """The last line of each network, by digest; {} without a file."""
    return {line["digest"]: line for line in read_lines(file)}


def graded(*networks: NDArray[Any]) -> dict[str, Any]:
    """`spread`, the mean over networks, from the scores (N,) of each on single samples; {} if answers are right or wrong.

    It is the standard deviation over that of scores of only 0 and 1 with the same mean, which vary most: in [0, 1].
    """
    scores = [one_N.astype(np.float64) for one_N in networks]
    if not scores or all(np.isin(one_N, (0, 1)).all() for one_N in scores):
        return {}
    most = [float(np.sqrt(one_N.mean() * (1 - one_N.mean()))) for one_N in scores]
    shares = [one_N.std() / limit if limit else 1.0 for one_N, limit in zip(scores, most, strict=True)]
    return {"spread": min(1.0, float(np.mean(shares)))}


FAR_BETTER = 0.1
"""Gain of accuracy on other samples for which another order of the classes is reported."""


def exchanged(
    found: Mapping[str, Tallied], classes: Sequence[str], order: Sequence[int] | None, progress: Progress
) -> dict[str, Any]:
    """`exchanged`: a line, also shown, if a trained network's outputs are likely in another order than the classes; else {}.

    The order is that of the optimal assignment by the confusions on validation samples, and judged on test samples. found: by
    split. order: of the settings, `data.class_order`.
    """
    seen, other = found["validation"], found["test"]
    if seen.confusion_KK is None or other.confusion_KK is None:
        return {}
    from scipy.optimize import linear_sum_assignment  # takes a second

    class_K, answer_K = linear_sum_assignment(seen.confusion_KK, maximize=True)
    reached = float(other.confusion_KK[class_K, answer_K].sum() / other.confusion_KK.sum())
    if reached < other.score + FAR_BETTER:
        return {}
    given = range(len(classes)) if order is None else order
    moved = [classes[one] for one in class_K if answer_K[one] != one]
    names = " and ".join((", ".join(moved[:-1]), moved[-1])) if len(moved) <= MOST_NAMED else f"{len(moved)} of them"
    wanted = ",".join(str(given[one]) for one in np.argsort(answer_K))
    line = (
        f"accuracy {percent(other.score)} as the classes are ordered ({first_of(classes)}), {percent(reached)} with {names} "
        f"exchanged: set data.class_order=[{wanted}]"
    )
    progress.say(line)
    return {"exchanged": line}


class EvaluatedLine(TypedDict):
    """A line of a file of accuracies: a SubNet, and its `Accuracy`."""

    digest: str
    config: Config
    correct: float
    total: int
    loss: float
    hits: str
    scores: NotRequired[str]
    confusion: NotRequired[list[list[int]]]


class Accuracy(NamedTuple):
    """Correct answers for `total` images, and the mean loss.

    correct: number of correctly classified images; if answers are graded, `total` times the learning problem's score
    (`tasks.data.problems.Tallied`). hits: whether each image is classified correctly, bits in base64. scores: of single
    images in other problems, float16 in base64. confusion: samples by class (rows) and answer (columns), (K, K); None: not
    kept.
    """

    correct: float
    total: int
    loss: float
    hits: str = ""
    scores: str = ""
    confusion: list[list[int]] | None = None

    @classmethod
    def of(cls, line: EvaluatedLine) -> "Accuracy":
        """The accuracy in a line of a file."""
        scores, confusion = line.get("scores", ""), line.get("confusion")
        return cls(line["correct"], line["total"], line["loss"], line["hits"], scores, confusion)

    @classmethod
    def tallied(cls, found: Tallied, *, confusions: bool = False) -> "Accuracy":
        """The accuracy from tallied answers of a network. confusions: whether `confusion` is kept."""
        total, confusion = len(found.each_N), confusion_of(found) if confusions else None
        if found.each_N.dtype == np.bool_:
            right_N = found.each_N.astype(np.bool_)
            hits = base64.b64encode(np.packbits(right_N).tobytes()).decode()
            return cls(int(right_N.sum()), total, found.loss, hits, confusion=confusion)
        scores = base64.b64encode(found.each_N.astype("<f2").tobytes()).decode()
        return cls(found.score * total, total, found.loss, scores=scores, confusion=confusion)

    def line(self, digest: str, config: Config) -> EvaluatedLine:
        """The accuracy of a SubNet as a line of a file."""
        line = EvaluatedLine(
            digest=digest, config=config, correct=self.correct, total=self.total, loss=self.loss, hits=self.hits
        )
        if self.scores:
            line["scores"] = self.scores
        if self.confusion is not None:
            line["confusion"] = self.confusion
        return line

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each image was classified correctly (total,), from `hits`."""
        bits = np.frombuffer(base64.b64decode(self.hits), np.uint8)
        assert len(bits) == math.ceil(self.total / 8)
        return np.unpackbits(bits, count=self.total).astype(bool)

    @property
    def each(self) -> NDArray[np.float64]:
        """The score of each single image (total,), in [0, 1]; 1 or 0 in classification."""
        if not self.scores:
            return self.right.astype(np.float64)
        found = np.frombuffer(base64.b64decode(self.scores), "<f2").astype(np.float64)
        assert len(found) == self.total
        return found

    @property
    def share(self) -> float:
        """The score of the learning problem in [0, 1], such as top-1 accuracy or mean IoU."""
        return self.correct / self.total
