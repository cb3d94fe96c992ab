"""`chosen/DEVICE.json`, or the file of `search … --to FILE.json`: one SubNet that a rule chose on one device."""

from typing import ClassVar

from profiling_agents.messages import ActivationCoding
from tasks.schemas.front import Winner
from tasks.schemas.placed import PlanRow
from tasks.schemas.stored import Stored


class ChosenSubNet(Stored):
    """A SubNet to go on with. `rule`: what it was chosen by, for people."""

    STAGE: ClassVar[str] = "search"
    COMMAND: ClassVar[str] = "search --budget-ms MS --to FILE.json"
    KIND: ClassVar[str] = "chosen SubNet"

    device: str
    rule: str
    subnet: Winner
    plan: PlanRow | None = None
    """Where it runs, of a search over several devices together."""
    coding: ActivationCoding | None = None
    """Of what the plan sends."""
