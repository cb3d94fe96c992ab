"""Guards of a SubNet that adapts: they detect drift first, filter images, and undo wrong adaptation.
The parts without torch are in `adaptive_runtime.weights`, which the device uses, too.
"""

from tasks.adaptation.guards.guarded import GuardedAnswer, GuardedSubnet
from tasks.adaptation.guards.judging import Anchor, AnchorJudge
from tasks.adaptation.guards.profile import SourceProfile

__all__ = ["Anchor", "AnchorJudge", "GuardedAnswer", "GuardedSubnet", "SourceProfile"]
