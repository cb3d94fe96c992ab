"""How requests are run over several devices."""

from typing import Annotated

from pydantic import Field

from profiling_agents.messages import ActivationCoding, Message


class SplitOptions(Message):
    """coding: of tensors that cross links; `EnvelopePlacements` sends in fp32 where this is faster.

    check_share: of answers of other devices, so many are computed again at home. tolerance: the most that such an answer may
    differ, relative to the largest value of its tensor, besides what the coding does.

    spare_ms: home begins so much earlier than its predicted time and its own lateness so far demand. deviations: of home's
    measured times, so many standard deviations count as predicted. most_in_flight: requests that one device has at once.
    direct: values go straight from one other device to the next where that is possible.
    """

    coding: ActivationCoding = "fp32"
    check_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    tolerance: Annotated[float, Field(gt=0.0)] = 1e-3
    spare_ms: Annotated[float, Field(ge=0.0)] = 5.0
    deviations: Annotated[float, Field(ge=0.0)] = 3.0
    most_in_flight: Annotated[int, Field(ge=1, le=16)] = 8
    direct: bool = True
    seed: int = 0
