"""The current state of a registry as metrics: devices, recent pulls, roll-outs."""

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy import func, select

from tasks.operations.fleet.registry import Registry, list_rollouts
from tasks.operations.fleet.registry.tables import bundles, devices

PREFIX = "autotailor_fleet_"


def registry_metrics(registry: Registry) -> Iterator[Metric]:
    """Counts of the database. They contain no name of a device or owner."""
    with registry.reading() as connection:
        heard = devices.c.seen_s > time.time() - registry.window_s
        rows = connection.execute(
            select(devices.c.kind, func.count(), func.count().filter(heard)).group_by(devices.c.kind)
        )
        by_kind = [(str(kind), known, lately) for kind, known, lately in rows]
        count = connection.execute(select(func.count()).select_from(bundles)).scalar_one()
        rollouts = list_rollouts(connection)
    known = GaugeMetricFamily(f"{PREFIX}devices", "Devices that have enrolled, by kind.", labels=["kind"])
    lately = GaugeMetricFamily(
        f"{PREFIX}pulled_devices", "Devices that have pulled in the last window.", labels=["kind"]
    )
    for kind, all_of_kind, pulled in by_kind:
        known.add_metric([kind], all_of_kind)
        lately.add_metric([kind], pulled)
    yield known
    yield lately
    yield GaugeMetricFamily(f"{PREFIX}bundles", "Bundles that the registry has.", value=count)
    states = GaugeMetricFamily(f"{PREFIX}rollouts", "Roll-outs by state.", labels=["state"])
    for state in ("running", "asking", "halted", "complete"):
        states.add_metric([state], sum(row.state == state for row in rollouts))
    yield states
    reached = GaugeMetricFamily(
        f"{PREFIX}rollout_devices", "Devices that the latest roll-out has reached.", labels=["of"]
    )
    for row in rollouts[-1:]:
        reached.add_metric(["reached"], row.reached)
        reached.add_metric(["all"], row.devices)
    yield reached
