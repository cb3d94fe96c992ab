"""The registry of devices, bundles and roll-outs, in a database: SQLite by default, PostgreSQL by its address."""

from tasks.operations.fleet.registry.bundles import BundleStore, bundle_named
from tasks.operations.fleet.registry.database import Registry
from tasks.operations.fleet.registry.devices import (
    DeviceRow,
    EnrolmentToken,
    enrol,
    find_device,
    list_devices,
    new_enrolment,
    note_verdict,
    remove_device,
)
from tasks.operations.fleet.registry.rollouts import RolloutRow, advance, begin, go_on, list_rollouts, stop
from tasks.operations.fleet.registry.telemetry import record

__all__ = [
    "BundleStore",
    "DeviceRow",
    "EnrolmentToken",
    "Registry",
    "RolloutRow",
    "advance",
    "begin",
    "bundle_named",
    "enrol",
    "find_device",
    "go_on",
    "list_devices",
    "list_rollouts",
    "new_enrolment",
    "note_verdict",
    "record",
    "remove_device",
    "stop",
]
