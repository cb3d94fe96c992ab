"""Roll-outs of a registry: begun by a person, advanced by telemetry, window by window.

Telemetry is filed under the window in which it arrived, since clocks of devices may be wrong.

Legend: N devices that the stage compares, W windows.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, RowMapping, func, insert, select, update

from adaptive_runtime.fleet import RequestSums, Telemetry
from tasks.base.errors import UserError
from tasks.operations.fleet.decision import RolloutDecision, StagePlan, StageRecord, TelemetrySums, decide, draw_stage
from tasks.operations.fleet.registry import (
    bundles,
    devices,
    one_at_a_time,
    rollout_devices,
    rollout_events,
    rollouts,
    telemetry,
)
from tasks.operations.fleet.settings import RolloutSettings

FIELDS = tuple(RequestSums.model_fields)
AT_ONCE = 500
"""Devices that one query names."""


class WindowedSums(NamedTuple):
    """sums_NWF: by `FIELDS`. heard_NW: whether the device reported. bundle_N: requests answered by a roll-out's bundle."""

    sums_NWF: NDArray[np.float64]
    heard_NW: NDArray[np.bool_]
    bundle_N: NDArray[np.float64]

    def over(self, first: int, last: int) -> TelemetrySums:
        """Sums over the windows `first` to `last` - 1, (1, N) each."""
        sums_NF = self.sums_NWF[:, first:last].sum(1)
        fields = {name: sums_NF[None, :, place] for place, name in enumerate(FIELDS)}
        return TelemetrySums(**fields, heard=self.heard_NW[:, first:last].sum(1)[None].astype(float))


def record(connection: Connection, device: str, described: Telemetry, now_s: float, window_s: float) -> int | None:
    """Add sums to the window that `now_s` is in; a repeated message is added once. None: the sums count.

    A number: the registry already has this sequence number of the device, or a later one, with different telemetry. The device
    then reports from an older copy of its folder, as after a restored backup: nothing is added, and the device's row says so.
    """
    columns = (devices.c.sequence, devices.c.digest, devices.c.restored)
    before = connection.execute(select(*columns).where(devices.c.id == device).with_for_update()).one()
    digest = hashlib.sha256(described.model_dump_json().encode()).hexdigest()
    values: dict[str, Any] = {"seen_s": now_s}
    if described.sequence > before.sequence:
        values |= {"active": described.bundle, "sequence": described.sequence, "digest": digest}
        _add(connection, device, described, int(now_s // window_s))
    elif described.sequence < before.sequence or before.digest not in (None, digest):
        values |= {"restored": before.restored + 1, "restored_s": now_s}
    connection.execute(update(devices).where(devices.c.id == device).values(values))
    return int(before.sequence) if "restored" in values else None


def _add(connection: Connection, device: str, described: Telemetry, window: int) -> None:
    asked = select(bundles.c.digest).where(bundles.c.digest == described.bundle)
    known = connection.execute(asked).scalar_one_or_none()  # devices cannot create rows under names of their own
    key: dict[str, str | int] = {"device": device, "window": window, "bundle": known or ""}
    sums = described.sums.model_dump()
    is_row = [telemetry.c[name] == value for name, value in key.items()]
    sums_with = {name: telemetry.c[name] + value for name, value in sums.items()}
    if connection.execute(update(telemetry).where(*is_row).values(sums_with)).rowcount == 0:
        connection.execute(insert(telemetry).values(key | sums))


def windows_of(
    connection: Connection, names: Sequence[str], first: int, count: int, *, bundle: str, since: int
) -> WindowedSums:
    """Sums of devices from window `first` on. bundle_N counts requests from window `since` on."""
    places = {name: place for place, name in enumerate(names)}
    sums_NWF = np.zeros((len(names), count, len(FIELDS)))
    heard_NW = np.zeros((len(names), count), dtype=bool)
    bundle_N = np.zeros(len(names))
    asked = select(*(telemetry.c[name] for name in ("device", "window", "bundle", *FIELDS)))
    asked = asked.where(telemetry.c.window >= first, telemetry.c.window < first + count)
    for start in range(0, len(names), AT_ONCE):
        some = asked.where(telemetry.c.device.in_(names[start : start + AT_ONCE]))
        for device, window, by, *values in connection.execute(some):
            place = places[device]
            sums_NWF[place, window - first] += values
            heard_NW[place, window - first] = True
            bundle_N[place] += values[0] * (by == bundle and window >= since)
    return WindowedSums(sums_NWF, heard_NW, bundle_N)


OPEN = ("running", "asking")
LIST = "see 'autotailor fleet rollouts'"


class RolloutRow(NamedTuple):
    """A roll-out in lists. devices: number of its devices; reached: with the bundle. reason: of its last event."""

    id: int
    bundle: str
    state: str
    stage: int
    devices: int
    reached: int
    reason: str


def begin(
    connection: Connection, bundle: str, settings: RolloutSettings, kinds: Sequence[str], now_s: float, window_s: float
) -> int:
    """Give the bundle to the devices of the first stage; the roll-out's number. kinds: empty: all kinds.

    Devices without telemetry in the last `windows_before` windows take no part, and get the bundle in the end. UserError: the
    bundle is unknown, another roll-out is open, or there are too few devices.
    """
    one_at_a_time(connection)
    if connection.execute(select(bundles.c.digest).where(bundles.c.digest == bundle)).first() is None:
        next_step = "add it: autotailor fleet add FOLDER"
        raise UserError("fleet rollout", f"'{bundle}' is no bundle here", next_step=next_step)
    _refuse_open(connection, "fleet rollout")
    window = int(now_s // window_s)
    lately = telemetry.c.window >= window - settings.windows_before
    heard = set(connection.execute(select(telemetry.c.device).where(lately).distinct()).scalars())
    rows = _taking_part(connection, kinds, heard)
    least = (len(settings.stages) + 1) * settings.least_devices
    if len(rows) < least:
        got = f"{len(rows)} devices have reported requests in the last {settings.windows_before} windows"
        raise UserError("fleet rollout", got, allowed=f"{least} or more", next_step="set rollout.least_devices=N")
    made = insert(rollouts).values(
        bundle=bundle,
        kinds=json.dumps(sorted(kinds)),
        settings=settings.model_dump_json(),
        seed=secrets.randbits(31),
        state="running",
        stage=0,
        stage_window=window,
        looked_window=window,
    )
    rollout = int(connection.execute(made.returning(rollouts.c.id)).scalar_one())
    placed = [{"rollout": rollout, "place": place, **row} for place, row in enumerate(rows)]
    connection.execute(insert(rollout_devices), placed)
    _start_stage(connection, rollout, 0, now_s, window)
    return rollout


def _refuse_open(connection: Connection, where: str, but: int = -1) -> None:
    """UserError if a roll-out besides number `but` is not over."""
    open_ = select(rollouts.c.id).where(rollouts.c.state.in_(OPEN), rollouts.c.id != but)
    if (other := connection.execute(open_).scalars().first()) is not None:
        raise UserError(where, f"roll-out {other} is not over", next_step=f"autotailor fleet halt {other} ends it")


def _row(connection: Connection, rollout: int) -> RowMapping:
    return connection.execute(select(rollouts).where(rollouts.c.id == rollout)).mappings().one()


def _change(connection: Connection, rollout: int, **values: Any) -> None:
    connection.execute(update(rollouts).where(rollouts.c.id == rollout).values(values))


def _taking_part(connection: Connection, kinds: Sequence[str], heard: set[str]) -> list[dict[str, Any]]:
    """Rows of the devices in `heard` whose kind is in `kinds`; if `kinds` is empty, of any kind."""
    columns = (devices.c.id, devices.c.kind, devices.c.assigned)
    found = connection.execute(select(*columns).order_by(devices.c.id))
    return [
        {"device": device, "kind": kind, "before": assigned}
        for device, kind, assigned in found
        if device in heard and (not kinds or kind in kinds)
    ]


def advance(connection: Connection, now_s: float, window_s: float) -> dict[int, RolloutDecision]:
    """Decide once for each window that is over, on all running roll-outs; the decisions by roll-out."""
    one_at_a_time(connection)
    found = {}
    last = int(now_s // window_s) - 1
    for row in connection.execute(select(rollouts).where(rollouts.c.state == "running")).mappings().all():
        if last > row["looked_window"]:
            found[row["id"]] = _look(connection, row, last, now_s)
            _change(connection, row["id"], looked_window=last)
    return found


def _look(connection: Connection, row: RowMapping, last: int, now_s: float) -> RolloutDecision:
    settings = RolloutSettings.model_validate_json(row["settings"])
    record = _record(connection, row, settings, last)
    decision = decide(settings, record, np.random.default_rng((row["seed"], row["stage"], 1)))
    if decision.action == "go on":
        _go_on(connection, row["id"], decision.reason, now_s, last + 1)
    elif decision.action == "halt":
        _roll_back(connection, row["id"], decision.reason, now_s)
    elif decision.action == "ask":
        _tell(connection, row["id"], "ask", decision.reason, now_s, state="asking")
    return decision


def _record(connection: Connection, row: RowMapping, settings: RolloutSettings, last: int) -> StageRecord:
    """The stage so far. The window in which it began is left out: devices have changed bundles in it."""
    columns = rollout_devices.c
    asked = select(columns.device, columns.kind, columns.stage, columns.place).where(
        columns.rollout == row["id"], columns.compared
    )
    found = connection.execute(asked.order_by(columns.kind, columns.place)).all()
    names, kinds, stages, places = zip(*found, strict=True)
    treated_N = np.array([stage == row["stage"] for stage in stages])
    kind_N = np.unique(kinds, return_inverse=True)[1]
    place_N = np.array(places)
    plan = StagePlan(row["stage"], place_N[treated_N], place_N, treated_N, kind_N)
    begun, before = row["stage_window"], settings.windows_before
    last = min(last, begun + settings.most_windows)
    described = windows_of(
        connection, names, begun - before, before + 1 + last - begun, bundle=row["bundle"], since=begun + 1
    )
    windows = [described.over(at, at + 1) for at in range(before + 1, before + 1 + last - begun)]
    return StageRecord(plan, described.over(0, before), windows, described.bundle_N)


def _start_stage(connection: Connection, rollout: int, stage: int, now_s: float, window: int) -> None:
    row, columns = _row(connection, rollout), rollout_devices.c
    settings = RolloutSettings.model_validate_json(row["settings"])
    asked = select(columns.device, columns.kind, columns.stage).where(columns.rollout == rollout)
    found = connection.execute(asked.order_by(columns.place)).all()
    taken_F = np.array([one.stage is not None for one in found])
    kinds = [one.kind for one in found]
    plan = draw_stage(kinds, taken_F, stage, settings, np.random.default_rng((row["seed"], stage)))
    is_of = columns.rollout == rollout
    connection.execute(update(rollout_devices).where(is_of).values(compared=False))
    _mark(connection, rollout, plan.compared_N.tolist(), {"compared": True})
    _mark(connection, rollout, plan.added.tolist(), {"stage": stage})
    given = select(columns.device).where(is_of, columns.stage == stage)
    connection.execute(update(devices).where(devices.c.id.in_(given)).values(assigned=row["bundle"]))
    _change(connection, rollout, stage=stage, stage_window=window, looked_window=window, state="running")
    _tell(connection, rollout, "stage", f"{len(plan.added)} of {len(found)} devices more get the bundle", now_s)


def _mark(connection: Connection, rollout: int, places: Sequence[int], values: dict[str, Any]) -> None:
    for start in range(0, len(places), AT_ONCE):
        some = rollout_devices.c.place.in_(places[start : start + AT_ONCE])
        connection.execute(update(rollout_devices).where(rollout_devices.c.rollout == rollout, some).values(values))


def _go_on(connection: Connection, rollout: int, reason: str, now_s: float, window: int) -> None:
    row = _row(connection, rollout)
    _tell(connection, rollout, "go on", reason, now_s)
    if row["stage"] + 1 < len(RolloutSettings.model_validate_json(row["settings"]).stages):
        _start_stage(connection, rollout, row["stage"] + 1, now_s, window)
        return
    kinds = json.loads(row["kinds"])
    columns = rollout_devices.c
    known = connection.execute(select(columns.device).where(columns.rollout == rollout)).scalars().all()
    every = set(connection.execute(select(devices.c.id)).scalars())
    silent = _taking_part(connection, kinds, every - set(known))
    placed = [{"rollout": rollout, "place": place, **one} for place, one in enumerate(silent, len(known))]
    if placed:
        connection.execute(insert(rollout_devices), placed)
    left = (columns.rollout == rollout) & columns.stage.is_(None)
    given = select(columns.device).where(left)
    connection.execute(update(devices).where(devices.c.id.in_(given)).values(assigned=row["bundle"]))
    connection.execute(update(rollout_devices).where(left).values(stage=row["stage"] + 1))
    _tell(connection, rollout, "complete", "all devices get the bundle", now_s, state="complete")


def _roll_back(connection: Connection, rollout: int, reason: str, now_s: float) -> None:
    """Reassign all devices of the roll-out to their bundles from before; later assignments by other roll-outs stay."""
    bundle, columns = _row(connection, rollout)["bundle"], rollout_devices.c
    asked = select(columns.device, columns.before).where(columns.rollout == rollout, columns.stage.is_not(None))
    for device, before in connection.execute(asked).all():
        is_of = (devices.c.id == device) & (devices.c.assigned == bundle)
        connection.execute(update(devices).where(is_of).values(assigned=before))
    _tell(connection, rollout, "halt", reason, now_s, state="halted")


def _tell(
    connection: Connection, rollout: int, action: str, reason: str, now_s: float, state: str | None = None
) -> None:
    if state is not None:
        _change(connection, rollout, state=state)
    stage = _row(connection, rollout)["stage"]
    values = {"rollout": rollout, "at_s": now_s, "stage": stage, "action": action, "reason": reason}
    connection.execute(insert(rollout_events).values(values))


def stop(connection: Connection, rollout: int) -> None:
    """Halt a roll-out by hand, even a complete one: its devices go back. UserError: it does not exist, or is already halted."""
    one_at_a_time(connection)
    state = _state(connection, rollout)
    if state == "halted":
        raise UserError("fleet halt", f"roll-out {rollout} is halted already", next_step=LIST)
    _refuse_open(connection, "fleet halt", rollout)
    _roll_back(connection, rollout, "halted by hand", time.time())


def go_on(connection: Connection, rollout: int, now_s: float, window_s: float) -> None:
    """Start the next stage of a roll-out that asks. UserError: it does not ask."""
    one_at_a_time(connection)
    state = _state(connection, rollout)
    if state != "asking":
        raise UserError("fleet go-on", f"roll-out {rollout} is {state}", allowed="one that asks", next_step=LIST)
    _go_on(connection, rollout, "decided by hand", now_s, int(now_s // window_s))


def _state(connection: Connection, rollout: int) -> str:
    found = connection.execute(select(rollouts.c.state).where(rollouts.c.id == rollout)).scalar_one_or_none()
    if found is None:
        raise UserError("fleet", f"there is no roll-out {rollout}", next_step=LIST)
    return str(found)


def list_rollouts(connection: Connection) -> list[RolloutRow]:
    """All roll-outs, the latest last."""
    rows, own, events = [], rollout_devices.c, rollout_events.c
    columns = (rollouts.c.id, rollouts.c.bundle, rollouts.c.state, rollouts.c.stage)
    for row in connection.execute(select(*columns).order_by(rollouts.c.id)).mappings().all():
        counts = select(func.count(), func.count(own.stage)).where(own.rollout == row["id"])
        known, reached = connection.execute(counts).one()
        described = select(events.reason).where(events.rollout == row["id"]).order_by(events.id.desc())
        reason = connection.execute(described).scalars().first() or ""
        rows.append(RolloutRow(**row, devices=known, reached=reached, reason=reason))
    return rows
