"""A device of a fleet: enrols, reports sums over its requests, and runs the bundle that its registry assigns.

[Roll-outs](docs/rollouts.md) shows how it is used.
"""

from adaptive_runtime.fleet.member import FleetMember
from adaptive_runtime.fleet.messages import (
    AssignedBundle,
    EnrolAsked,
    Enrolled,
    RequestCounter,
    RequestSums,
    ServedSums,
    Telemetry,
)
