"""Plans precomputed for all bandwidths and loads within a range, so that a plan is found by a look-up.

The latency of a plan is linear in the time of a byte and in the slow-down of a device. The least latency is therefore concave
in both, and consists of planes: the lower envelope. Exact planning at the corners of the planes found so far either finds a
better plan there, whose plane is added, or shows that the envelope is complete. Source: Eisner and Severance (JACM 1976),
extended to two parameters.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from solvers.partition.planner import PartitionPlanner
from solvers.partition.problem import BITS, MEGA, MS, PartitionConditions, PartitionPlan, weights
from solvers.tables import Values

CLOSE = 1e-9  # share of the latency: a plan that improves by less is not added
MOST_PLANS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPoint:
    """Bandwidth of the varying links [Mbit/s], and the slow-down of the loaded device: factor over its usual step times."""

    bandwidth_mbps: float
    slow_down: float


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanEnvelope:
    """All plans that are fastest somewhere between `low` and `high`.

    planes: (P, 3), the latency of each plan as coefficients of 1, the time of a byte [ms], and the slow-down.
    """

    plans: tuple[PartitionPlan, ...]
    planes: Values
    low: PlanPoint
    high: PlanPoint

    def at(self, bandwidth_mbps: float, slow_down: float) -> int:
        """Position of the fastest plan."""
        return int(self._latencies_ms(bandwidth_mbps, slow_down).argmin())

    def latency_ms(self, bandwidth_mbps: float, slow_down: float) -> float:
        """Latency of the fastest plan [ms]."""
        return float(self._latencies_ms(bandwidth_mbps, slow_down).min())

    def _latencies_ms(self, bandwidth_mbps: float, slow_down: float) -> Values:
        return self.planes.dot(np.array((1.0, _ms_per_byte(bandwidth_mbps), slow_down)))


def envelope_of(
    planner: PartitionPlanner,
    conditions: PartitionConditions,
    low: PlanPoint,
    high: PlanPoint,
    *,
    links: NDArray[np.float64] | NDArray[np.bool_] | None = None,
    loaded: int | None = None,
) -> PlanEnvelope:
    """The envelope of exact plans. conditions: the conditions that do not change.

    links: (D, D) how often a byte from one device to another crosses the links whose bandwidth changes, 0 if that route does
    not change; 1 everywhere by default. loaded: the device whose slow-down changes; None: the coordinator.
    """
    changing = np.asarray(1.0 - np.eye(planner.problem.devices) if links is None else links, float)
    device = planner.problem.coordinator if loaded is None else loaded
    u = (_ms_per_byte(high.bandwidth_mbps), _ms_per_byte(low.bandwidth_mbps))
    s = (low.slow_down, high.slow_down)
    plans, planes, seen = list[PartitionPlan](), list[Values](), set[tuple[float, ...]]()
    points, grows = np.asarray(list(product(u, s))), True
    while grows and len(plans) < MOST_PLANS:
        grows = False
        for x, y in points.tolist():
            key = tuple(round((value - least) / (most - least or 1.0), 9) for value, (least, most) in ((x, u), (y, s)))
            if key in seen:
                continue
            seen.add(key)
            plan = planner.fastest(_conditions_at(conditions, changing, device, x, y))
            plane = _plane(plan, conditions, changing, device)
            latency_ms = float(plane @ (1.0, x, y))
            known_ms = min((float(other @ (1.0, x, y)) for other in planes), default=np.inf)
            if not planes or latency_ms < known_ms - CLOSE * abs(known_ms):
                plans.append(plan)
                planes.append(plane)
                grows = True
        points = _corners(np.asarray(planes), u, s)
    return PlanEnvelope(plans=tuple(plans), planes=np.asarray(planes), low=low, high=high)


def _ms_per_byte(bandwidth_mbps: float) -> float:
    return BITS / (bandwidth_mbps * MEGA * MS)


def _conditions_at(
    conditions: PartitionConditions, changing: NDArray[np.float64], loaded: int, ms_per_byte: float, slow_down: float
) -> PartitionConditions:
    """The conditions with this time of a byte on changing links, and this slow-down of the loaded device."""
    slow_downs = conditions.slow_down.copy()
    slow_downs[loaded] = slow_down
    shared_mbps = BITS / (ms_per_byte * np.where(changing > 0, changing, 1.0) * MEGA * MS)
    bandwidth_mbps = np.where(changing > 0, shared_mbps, conditions.bandwidth_mbps)
    return replace(conditions, slow_down=slow_downs, bandwidth_mbps=bandwidth_mbps)


def _plane(plan: PartitionPlan, conditions: PartitionConditions, changing: NDArray[np.float64], loaded: int) -> Values:
    """The latency of a plan as coefficients of 1, the time of a byte, and the slow-down."""
    row, weights_ms, devices = plan.row, weights(conditions), len(plan.compute_ms)
    kept = row > 0
    kept[loaded] = False
    kept[devices : devices + devices**2] &= changing.ravel() == 0
    return np.asarray([row[kept] @ weights_ms[kept], (plan.bytes * changing).sum(), plan.compute_ms[loaded]])


def _corners(planes: Values, u: tuple[float, float], s: tuple[float, float]) -> Values:
    """The corners (C, 2) of the lower envelope of planes over a box."""
    box = np.asarray(list(product(u, s)))
    if len(planes) == 1 or u[0] == u[1] or s[0] == s[1]:
        return box if len(planes) == 1 else _edge_corners(planes, u, s)
    from scipy.spatial import HalfspaceIntersection

    scaled = np.column_stack([planes @ (1.0, u[0], s[0]), planes[:, 1] * (u[1] - u[0]), planes[:, 2] * (s[1] - s[0])])
    least = np.min([scaled @ (1.0, x, y) for x in (0, 1) for y in (0, 1)])
    scaled[:, 0] -= least
    size = float(scaled.sum(axis=1).max()) or 1.0
    scaled /= size  # t between 0 and 1 above the box of the unit square
    # below all planes, above t = -1, within the unit square
    half = [(-b, -c, 1.0, -a) for a, b, c in scaled]
    half += [(-1, 0, 0, 0), (1, 0, 0, -1), (0, -1, 0, 0), (0, 1, 0, -1), (0, 0, -1, -1)]
    inside = np.asarray([0.5, 0.5, -0.5])
    found = HalfspaceIntersection(np.asarray(half, float), inside).intersections
    upper = found[(found[:, 2] > -0.5) & np.isfinite(found).all(axis=1)]
    xy = np.clip(upper[:, :2], 0.0, 1.0) * (u[1] - u[0], s[1] - s[0]) + (u[0], s[0])
    return np.vstack([box, xy])


def _edge_corners(planes: Values, u: tuple[float, float], s: tuple[float, float]) -> Values:
    """The corners over a line, when one parameter does not change: all points at which two planes are equal, and both ends."""
    along, fixed = (1, 2) if s[0] == s[1] else (2, 1)
    value, (low, high) = (s[0], u) if along == 1 else (u[0], s)
    lines = np.column_stack([planes[:, 0] + planes[:, fixed] * value, planes[:, along]])
    rise = lines[:, None, 1] - lines[None, :, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = (lines[None, :, 0] - lines[:, None, 0]) / rise
    inside = at[np.isfinite(at) & (at > low) & (at < high)]
    positions = np.unique(np.concatenate([[low, high], inside]))
    other = np.full(len(positions), value)
    return np.column_stack([positions, other] if along == 1 else [other, positions])
