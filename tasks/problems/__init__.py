"""Learning problems: what a network is trained to answer, and by what it is judged; a record for each.

A problem that can be judged by several metrics has a record for each. A new problem is a record here, a source of data whose
targets are for it (`tasks.data`), and a test.
"""

from tasks.problems.classification import CLASSIFICATION, CLASSIFICATION_BY_F1
from tasks.problems.detection import DETECTION, DETECTION_BY_COCO
from tasks.problems.record import Batch, Divergence, LearningProblem, Tallied, Tally, require
from tasks.problems.restoration import RESTORATION, SUPER_RESOLUTION
from tasks.problems.segmentation import SEGMENTATION
from tasks.problems.several import SEVERAL_CLASSES
from tasks.problems.tagging import TAGGING

__all__ = [
    "CLASSIFICATION",
    "CLASSIFICATION_BY_F1",
    "DETECTION",
    "DETECTION_BY_COCO",
    "RESTORATION",
    "SEGMENTATION",
    "SEVERAL_CLASSES",
    "SUPER_RESOLUTION",
    "TAGGING",
    "Batch",
    "Divergence",
    "LearningProblem",
    "Tallied",
    "Tally",
    "other_metric",
    "problem_named",
    "require",
]

PROBLEMS: tuple[LearningProblem, ...] = (
    CLASSIFICATION,
    CLASSIFICATION_BY_F1,
    SEVERAL_CLASSES,
    SEGMENTATION,
    *DETECTION.values(),
    *DETECTION_BY_COCO.values(),
    RESTORATION,
    *SUPER_RESOLUTION.values(),
    TAGGING,
)


def problem_named(name: str, metric: str | None = None) -> LearningProblem:
    """The record of a problem that is judged by a metric, as settings call it (`data.metric`); None: by its first one."""
    return next(record for record in PROBLEMS if record.name == name and metric in (None, record.judged_by))


def other_metric(problem: LearningProblem) -> str | None:
    """The metric by which a problem is judged, where it is not its first one; None: it is."""
    return None if problem.judged_by == problem_named(problem.name).judged_by else problem.judged_by
