"""`chosen/DEVICE.json`, or the file of `search … --to FILE.json`: one SubNet that a rule chose on one device."""

from typing import ClassVar

from profiling_agents.messages import ActivationCoding
from tasks.base.schemas.front import Winner
from tasks.base.schemas.placed import PlanRow
from tasks.base.schemas.stored import Stored


class ChosenSubNet(Stored):
    """A SubNet to continue with. rule: the reason for its choice, for people."""

    STAGE: ClassVar[str] = "search"
    COMMAND: ClassVar[str] = "search --budget-ms MS --to FILE.json"
    KIND: ClassVar[str] = "chosen SubNet"

    device: str
    rule: str
    subnet: Winner
    plan: PlanRow | None = None
    """Placement of the SubNet, if the search was over several devices together."""
    coding: ActivationCoding | None = None
    """Coding of the values that the plan sends."""
