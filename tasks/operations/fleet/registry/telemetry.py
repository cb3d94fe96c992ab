"""Telemetry of devices: filed under the window in which it arrived, since clocks of devices may be wrong.

Legend: N devices, W windows.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from adaptive_runtime.fleet import RequestSums, Telemetry
from tasks.operations.fleet.registry.tables import bundles, devices, telemetry
from tasks.operations.fleet.rollout import TelemetrySums

FIELDS = tuple(RequestSums.model_fields)
AT_ONCE = 500
"""Devices that one query names."""


class WindowedSums(NamedTuple):
    """sums_NWF: by device, window and field of `FIELDS`. heard_NW: whether the device reported anything. bundle_N: requests
    that were answered by the bundle of a roll-out.
    """

    sums_NWF: NDArray[np.float64]
    heard_NW: NDArray[np.bool_]
    bundle_N: NDArray[np.float64]

    def over(self, first: int, last: int) -> TelemetrySums:
        """Sums over the windows `first` to `last` - 1, (1, N) each."""
        sums_NF = self.sums_NWF[:, first:last].sum(1)
        fields = {name: sums_NF[None, :, place] for place, name in enumerate(FIELDS)}
        return TelemetrySums(**fields, heard=self.heard_NW[:, first:last].sum(1)[None].astype(float))


def record(connection: Connection, device: str, told: Telemetry, now_s: float, window_s: float) -> int | None:
    """Add sums to the window that `now_s` is in; a repeated message is added once. None: the sums count.

    A number: the registry already has this sequence number of the device, or a later one, with different telemetry. The device
    then reports from an older copy of its folder, as after a restored backup: nothing is added, and the device's row says so.
    """
    columns = (devices.c.sequence, devices.c.told, devices.c.restored)
    before = connection.execute(select(*columns).where(devices.c.id == device).with_for_update()).one()
    digest = hashlib.sha256(told.model_dump_json().encode()).hexdigest()
    values: dict[str, Any] = {"seen_s": now_s}
    if told.sequence > before.sequence:
        values |= {"active": told.bundle, "sequence": told.sequence, "told": digest}
        _add(connection, device, told, int(now_s // window_s))
    elif told.sequence < before.sequence or before.told not in (None, digest):
        values |= {"restored": before.restored + 1, "restored_s": now_s}
    connection.execute(update(devices).where(devices.c.id == device).values(values))
    return int(before.sequence) if "restored" in values else None


def _add(connection: Connection, device: str, told: Telemetry, window: int) -> None:
    asked = select(bundles.c.digest).where(bundles.c.digest == told.bundle)
    known = connection.execute(asked).scalar_one_or_none()  # devices cannot create rows under names of their own
    key: dict[str, str | int] = {"device": device, "window": window, "bundle": known or ""}
    sums = told.sums.model_dump()
    added = connection.execute(
        update(telemetry).where(*_is(key)).values({name: telemetry.c[name] + value for name, value in sums.items()})
    )
    if added.rowcount == 0:
        connection.execute(insert(telemetry).values(key | sums))


def windows_of(
    connection: Connection, names: Sequence[str], first: int, count: int, *, bundle: str, since: int
) -> WindowedSums:
    """Sums of devices from window `first` on. bundle_N counts requests from window `since` on."""
    places = {name: place for place, name in enumerate(names)}
    sums_NWF = np.zeros((len(names), count, len(FIELDS)))
    heard_NW = np.zeros((len(names), count), dtype=bool)
    bundle_N = np.zeros(len(names))
    columns = [telemetry.c[name] for name in ("device", "window", "bundle", *FIELDS)]
    for start in range(0, len(names), AT_ONCE):
        asked = select(*columns).where(
            telemetry.c.device.in_(names[start : start + AT_ONCE]),
            telemetry.c.window >= first,
            telemetry.c.window < first + count,
        )
        for device, window, by, *values in connection.execute(asked):
            place = places[device]
            sums_NWF[place, window - first] += values
            heard_NW[place, window - first] = True
            bundle_N[place] += values[0] * (by == bundle and window >= since)
    return WindowedSums(sums_NWF, heard_NW, bundle_N)


def heard_since(connection: Connection, window: int) -> set[str]:
    """Devices that have reported something in this window or later."""
    return set(connection.execute(select(telemetry.c.device).where(telemetry.c.window >= window).distinct()).scalars())


def _is(key: dict[str, str | int]) -> list[ColumnElement[bool]]:
    return [telemetry.c[name] == value for name, value in key.items()]
