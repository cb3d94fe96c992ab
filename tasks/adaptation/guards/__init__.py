"""Guards of a SubNet that adapts: drift is detected first, images are filtered, and what was wrong is undone."""

from tasks.adaptation.guards.detection import DriftDetector
from tasks.adaptation.guards.guarded import GuardedAnswer, GuardedSubnet, GuardEvent, GuardEventKind
from tasks.adaptation.guards.judging import AdaptedVerdict, Anchor, AnchorJudge
from tasks.adaptation.guards.memory import BalancedMemory
from tasks.adaptation.guards.profile import SourceProfile

__all__ = [
    "AdaptedVerdict",
    "Anchor",
    "AnchorJudge",
    "BalancedMemory",
    "DriftDetector",
    "GuardEvent",
    "GuardEventKind",
    "GuardedAnswer",
    "GuardedSubnet",
    "SourceProfile",
]
