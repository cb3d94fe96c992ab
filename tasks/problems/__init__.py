"""Learning problems: what a network is trained to answer, and by what it is judged; a record for each.

A new problem is a record here, a source of data whose targets are for it (`tasks.data`), and a test.
"""

from tasks.problems.classification import CLASSIFICATION
from tasks.problems.detection import DETECTION
from tasks.problems.record import Batch, Divergence, LearningProblem, Tallied, Tally, require
from tasks.problems.segmentation import SEGMENTATION

__all__ = [
    "CLASSIFICATION",
    "DETECTION",
    "SEGMENTATION",
    "Batch",
    "Divergence",
    "LearningProblem",
    "Tallied",
    "Tally",
    "problem_named",
    "require",
]

RECORDS: tuple[LearningProblem, ...] = (CLASSIFICATION, SEGMENTATION, *DETECTION.values())
PROBLEMS: dict[str, LearningProblem] = {problem.name: problem for problem in RECORDS}


def problem_named(name: str) -> LearningProblem:
    """The record of a problem."""
    return PROBLEMS[name]
