"""Learning problems: the answers that a network is trained to give, and their metrics; a record for each.

A problem with several metrics has a record for each. A new problem needs a record here, a source of data with its targets
(`tasks.data`), and a test.
"""

from tasks.data.problems.classification import CLASSIFICATION, CLASSIFICATION_BY_F1, SEVERAL_CLASSES
from tasks.data.problems.detection import DETECTION, DETECTION_BY_COCO
from tasks.data.problems.fidelity import FIDELITY
from tasks.data.problems.own import OWN
from tasks.data.problems.record import Batch, Divergence, LearningProblem, Tallied, Tally, require
from tasks.data.problems.restoration import RESTORATION, SUPER_RESOLUTION
from tasks.data.problems.segmentation import SEGMENTATION
from tasks.data.problems.tagging import TAGGING

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
    OWN,
    FIDELITY,
)


def problem_named(name: str, metric: str | None = None) -> LearningProblem:
    """The record of a problem with a metric, by its name in settings (`data.metric`); None: by the problem's first metric."""
    return next(record for record in PROBLEMS if record.name == name and metric in (None, record.judged_by))


def other_metric(problem: LearningProblem) -> str | None:
    """The metric by which a problem is judged, if it is not the problem's first one; else None."""
    return None if problem.judged_by == problem_named(problem.name).judged_by else problem.judged_by
