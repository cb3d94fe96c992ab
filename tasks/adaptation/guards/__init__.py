"""Guards of a SubNet that adapts: drift is detected first, images are filtered, and what was wrong is undone.

What needs no torch is the device's, too: `adaptive_runtime.adapting_weights`.
"""

from tasks.adaptation.guards.guarded import GuardedAnswer, GuardedSubnet
from tasks.adaptation.guards.judging import Anchor, AnchorJudge
from tasks.adaptation.guards.profile import SourceProfile

__all__ = ["Anchor", "AnchorJudge", "GuardedAnswer", "GuardedSubnet", "SourceProfile"]
