"""Options for running requests over several devices."""

from typing import Annotated

from pydantic import Field

from profiling_agents.messages import ActivationCoding, Message


class SplitOptions(Message):
    """coding: of tensors on links; `EnvelopePlacements` sends in fp32 if that is faster.

    check_share: share of answers of other devices that the coordinator recomputes. tolerance: allowed difference of such an
    answer, relative to the largest value of its tensor, beyond the effect of the coding.

    spare_ms: the coordinator starts this much earlier than its predicted time and its own recent lateness demand. deviations:
    number of standard deviations added to the mean of the coordinator's measured times. most_in_flight: limit of requests in
    flight per device. direct: values go directly from one other device to the next if possible.
    """

    coding: ActivationCoding = "fp32"
    check_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    tolerance: Annotated[float, Field(gt=0.0)] = 1e-3
    spare_ms: Annotated[float, Field(ge=0.0)] = 5.0
    deviations: Annotated[float, Field(ge=0.0)] = 3.0
    most_in_flight: Annotated[int, Field(ge=1, le=16)] = 8
    direct: bool = True
    seed: int = 0
