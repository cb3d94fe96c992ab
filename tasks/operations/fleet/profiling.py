"""Devices of one kind share one look-up table: each measures a few operators, which also reveal outliers.

Operators are assigned to devices at random, so that no device knows by which operators it is judged; its times are
compared with those of the other devices. Devices are reached through a fleet's relay; a misbehaving device costs its
own time limit and nothing else.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import AgentError, Capabilities, Format, Measurement
from tasks.base.progress import Progress
from tasks.measuring import profile
from tasks.measuring.lut import Entry, Lut
from tasks.operations.fleet.settings import FleetProfileSettings

ALONE = profile.Settings(method="alone")
"""How operators are measured: like `autotailor profile profile.method=alone`, whose tables these are."""

T = TypeVar("T")


class RelayAccess(NamedTuple):
    """Access to a fleet's relay: its address, the clients' token, and the certificate (PEM) that https is checked against."""

    url: str
    token: str
    ca_file: Path | None = None

    def client(self, device: str) -> AgentClient:
        """A client for one device."""
        url = f"{self.url.rstrip('/')}/devices/{device}"
        return AgentClient(url, self.token, ca_file=self.ca_file, patience_s=0.0)


class DeviceAnswer(NamedTuple):
    """Measurements of a device. reason: why they are incomplete; None: they are complete."""

    measurements: tuple[Measurement, ...]
    reason: str | None


def describe(access: RelayAccess, device: str, limit_s: float) -> Capabilities | str:
    """The device's description of itself, or the reason why there is none."""
    try:
        with access.client(device) as client, client.within(limit_s):
            return client.capabilities()
    except AgentError as error:
        return str(error)


def measure(
    access: RelayAccess, device: str, jobs: Sequence[ModelJob], fingerprint: str, settings: FleetProfileSettings
) -> DeviceAnswer:
    """Times of some operators on the device, each measured alone."""
    found: list[Measurement] = []
    limit_s = settings.limit_s + settings.operator_s * len(jobs)
    try:
        with access.client(device) as client, client.within(limit_s), client.lease():
            if client.capabilities().fingerprint != fingerprint:
                return DeviceAnswer((), "its fingerprint has changed")
            found.extend(client.measure(jobs, ALONE.measure))
    except AgentError as error:
        return DeviceAnswer(tuple(found), str(error))
    return DeviceAnswer(tuple(found), None)


def side_by_side(
    asked: Callable[[str], T], devices: Iterable[str], at_once: int, done: Callable[[], None]
) -> Mapping[str, T]:
    """The answer of each device. `done` is called after each."""
    found: dict[str, T] = {}
    with ThreadPoolExecutor(at_once, "device") as threads:
        waiting = {threads.submit(asked, device): device for device in devices}
        for future in as_completed(waiting):
            found[waiting[future]] = future.result()
            done()
    return found


def assign_operators(
    devices: int, missing: Sequence[str], known: Sequence[str], settings: FleetProfileSettings, rng: np.random.Generator
) -> list[list[str]]:
    """Operators (digests) for each device. Operators that the table lacks are measured by `each_by` devices, or by all devices
    if there are fewer. A device with fewer than `spot_operators` of them gets operators from the table in addition.
    """
    spot, count = settings.spot_operators, len(missing)
    share = max(spot, -(-count * min(settings.each_by, devices) // devices)) if devices else 0
    uses_M = np.zeros(count, dtype=int)
    hands = []
    for _ in range(devices):
        rarest = np.lexsort((rng.random(count), uses_M))[:share]
        uses_M[rarest] += 1
        others = rng.permutation(len(known))[: max(0, spot - len(rarest))]
        hand = [missing[at] for at in rarest] + [known[at] for at in others]
        hands.append([hand[at] for at in rng.permutation(len(hand))])
    return hands


def reassign_operators(
    thin: Mapping[str, int], voted: Mapping[str, Collection[str]], devices: Sequence[str], rng: np.random.Generator
) -> dict[str, list[str]]:
    """Operators with too few votes, by device. thin: missing votes by operator; voted: devices that voted, by operator."""
    hands: dict[str, list[str]] = {}
    for operator, wanting in thin.items():
        free = [one for one in devices if one not in voted.get(operator, ())]
        for at in rng.permutation(len(free))[:wanting]:
            hands.setdefault(free[at], []).append(operator)
    return hands


VerdictState = Literal["sound", "outlier", "failed", "unknown"]
"""failed: it did not answer as an agent does. unknown: its kind has too few devices to identify outliers."""
LEAST_VOTES = 3
"""Number of devices from which a median is trusted: one of them may be an outlier."""

Votes = Mapping[str, Mapping[str, Measurement]]
"""By operator (digest), then by device."""


class DeviceVerdict(NamedTuple):
    """Verdict on a device. off, compared: numbers of operators. ratio: median, of its times to its kind's."""

    device: str
    state: VerdictState
    reason: str
    off: int = 0
    compared: int = 0
    ratio: float | None = None


def middle(votes: Iterable[Measurement]) -> Measurement | None:
    """The median measurement (the faster of two); a failure if more than half have failed; None without votes."""
    found = list(votes)
    ok = sorted((one for one in found if one.p50_ms is not None), key=lambda one: one.p50_ms or 0.0)
    failed = [one for one in found if one.p50_ms is None]
    if len(failed) > len(ok):
        return failed[0]
    return ok[(len(ok) - 1) // 2] if ok else None


def references(votes: Votes, table: Mapping[str, float]) -> dict[str, float]:
    """Reference p50 [ms] by operator: from the kind's table, else the median over enough devices."""
    found = dict(table)
    for operator, by_device in votes.items():
        if operator not in table and len(by_device) >= LEAST_VOTES:
            voted = middle(by_device.values())
            if voted is not None and voted.p50_ms is not None:
                found[operator] = voted.p50_ms
    return found


def judge(
    device: str, described: Sequence[Measurement], known: Mapping[str, float], settings: FleetProfileSettings
) -> DeviceVerdict:
    """The verdict on a device that answered. known: p50 [ms] by operator."""
    compared = [(one.p50_ms, known[one.key]) for one in described if one.key in known]
    most = settings.most_off(len(compared)) if compared else None
    if most is None:
        return DeviceVerdict(device, "unknown", f"{len(compared)} of its operators are known of other devices")
    limit = math.log1p(settings.tolerance)
    logs = [math.log(own / other) for own, other in compared if own is not None]
    off = len(compared) - sum(abs(one) <= limit for one in logs)
    ratio = math.exp(median(logs)) if logs else None
    share = f"{off} of {len(compared)} operators are more than {settings.tolerance:.0%} away from its kind"
    if off <= most:
        return DeviceVerdict(device, "sound", share, off, len(compared), ratio)
    way = ", all have failed" if ratio is None else f", in the median {ratio:.2g} times as long"
    return DeviceVerdict(device, "outlier", share + way, off, len(compared), ratio)


ROUNDS = 3
"""Rounds in which other devices repeat the measurements of outliers."""


class ProfiledKind(NamedTuple):
    """Devices with one fingerprint. table: name of their folder in the store. operators: operators of the network that the
    table has now; measured: those measured in this call. measurements: of all devices.
    """

    table: str
    description: str
    verdicts: tuple[DeviceVerdict, ...]
    operators: int
    measured: int
    measurements: int
    wall_s: float


class FleetProfile(NamedTuple):
    """Profile of all kinds. away: devices that did not describe themselves, with the reason."""

    kinds: tuple[ProfiledKind, ...]
    away: Mapping[str, str]


def profile_fleet(
    devices: Sequence[str],
    access: RelayAccess,
    operators: profile.FeaturesByDigest,
    store: Path,
    settings: FleetProfileSettings,
    rng: np.random.Generator,
    progress: Progress,
) -> FleetProfile:
    """Check all devices (numbers of a registry), and complete the table of each kind in a store of look-up tables."""
    with progress.bar("devices", len(devices)) as bar:
        ask = partial(describe, access, limit_s=settings.limit_s)
        described = side_by_side(ask, devices, settings.at_once, bar.advance)
    kinds: dict[tuple[str, tuple[Format, ...]], list[tuple[str, Capabilities]]] = {}
    for device in devices:
        if isinstance(
            found := described[device], Capabilities
        ):  # a device that takes other formats is a kind of its own
            kinds.setdefault((profile.device_key(found).name, found.formats), []).append((device, found))
    profiled = []
    for members in kinds.values():
        table = profile.open_table(ALONE, store, members[0][1])
        kind = _Kind([device for device, _ in members], members[0][1], table, access, operators, settings)
        profiled.append(kind.run(rng, progress))
    return FleetProfile(tuple(profiled), {one: why for one, why in described.items() if isinstance(why, str)})


class _Kind:
    """Devices of one kind while they are measured."""

    def __init__(
        self,
        devices: Sequence[str],
        capabilities: Capabilities,
        table: Lut,
        access: RelayAccess,
        operators: profile.FeaturesByDigest,
        settings: FleetProfileSettings,
    ) -> None:
        self._devices, self._capabilities, self._table = devices, capabilities, table
        self._access, self._operators, self._settings = access, operators, settings
        self._missing = list(profile.unknown(ALONE, table, operators))
        missing = set(self._missing)
        entries = {digest: table.get(digest) for digest in operators if digest not in missing}
        self._known = {digest: one.p50_ms for digest, one in entries.items() if one and one.p50_ms is not None}
        self._jobs: dict[str, ModelJob] = {}
        self._unmade: dict[str, Measurement] = {}
        self._votes: dict[str, dict[str, Measurement]] = {}
        self._verdicts: dict[str, DeviceVerdict] = {}
        self._count = 0

    def run(self, rng: np.random.Generator, progress: Progress) -> ProfiledKind:
        """Measure, judge twice, measure the outliers' operators again elsewhere, and write the table."""
        start_s = time.perf_counter()
        hands = assign_operators(len(self._devices), self._missing, list(self._known), self._settings, rng)
        described = self._ask(dict(zip(self._devices, hands, strict=True)), progress)
        self._judge(described)
        suspects = [one for one, verdict in self._verdicts.items() if verdict.state == "outlier"]
        self._judge(self._ask({one: self._others(one, rng) for one in suspects}, progress))
        for _ in range(ROUNDS):
            trusted = self._trusted()
            needed = min(LEAST_VOTES, self._settings.each_by, len(trusted))
            wanting = {one: needed - len(self._counted(one)) for one in self._missing if one not in self._unmade}
            if not (thin := {one: count for one, count in wanting.items() if count > 0}):
                break
            self._note_failed(self._ask(reassign_operators(thin, self._votes, trusted, rng), progress))
        entries = list(self._entries())
        self._table.append(entries)
        return ProfiledKind(
            table=self._table.device.name,
            description=self._table.device.description,
            verdicts=tuple(self._verdicts[one] for one in self._devices),
            operators=sum(self._table.get(digest) is not None for digest in self._operators),
            measured=len(entries),
            measurements=self._count,
            wall_s=time.perf_counter() - start_s,
        )

    def _others(self, device: str, rng: np.random.Generator) -> list[str]:
        """Operators for a second check: preferably ones that the device has not measured yet."""
        judging = list(references(self._votes, self._known))
        order = [judging[at] for at in rng.permutation(len(judging))]
        new = (one for one in order if device not in self._votes.get(one, {}))
        return list(dict.fromkeys([*new, *order]))[: self._settings.spot_operators]

    def _ask(self, hands: Mapping[str, Sequence[str]], progress: Progress) -> Mapping[str, DeviceAnswer]:
        """Measurements of each device; they become votes."""
        self._make({operator for hand in hands.values() for operator in hand})
        jobs = {one: [self._jobs[key] for key in hand if key in self._jobs] for one, hand in hands.items()}
        fingerprint = self._capabilities.fingerprint

        def ask(device: str) -> DeviceAnswer:
            return measure(self._access, device, jobs[device], fingerprint, self._settings)

        with progress.bar(self._table.device.name, len(hands)) as bar:
            described = side_by_side(ask, hands, self._settings.at_once, bar.advance)
        for device, answer in described.items():
            self._count += len(answer.measurements)
            for one in answer.measurements:
                self._votes.setdefault(one.key, {})[device] = one
        return described

    def _make(self, wanted: Iterable[str]) -> None:
        """Make the models of operators in the format that the kind takes."""
        new = [self._operators[one] for one in wanted if one not in self._jobs and one not in self._unmade]
        own = self._capabilities
        for start in range(0, len(new), ALONE.batch_operators):
            some = new[start : start + ALONE.batch_operators]
            jobs, failures = profile.operator_models(some, own.formats, ALONE.limits, own.precision)
            self._jobs |= {job.key: job for job in jobs}
            self._unmade |= {failure.key: failure for failure in failures}

    def _judge(self, described: Mapping[str, DeviceAnswer]) -> None:
        """Judge devices by their latest answers. Answers of outliers and failed devices do not count as votes."""
        by = references(self._votes, self._known)
        for device, answer in described.items():
            self._verdicts[device] = judge(device, answer.measurements, by, self._settings)
        self._note_failed(described)

    def _note_failed(self, described: Mapping[str, DeviceAnswer]) -> None:
        for device, answer in described.items():
            if answer.reason is not None:
                self._verdicts[device] = DeviceVerdict(device, "failed", answer.reason)

    def _trusted(self) -> list[str]:
        """Devices whose votes count."""
        return [one for one in self._devices if self._verdicts[one].state in ("sound", "unknown")]

    def _counted(self, operator: str) -> list[Measurement]:
        trusted = set(self._trusted())
        return [vote for device, vote in self._votes.get(operator, {}).items() if device in trusted]

    def _entries(self) -> Iterable[Entry]:
        """Entries of missing operators: the median of the counted measurements, or the failure to make the model."""
        for operator in self._missing:
            vote = self._unmade.get(operator) or middle(self._counted(operator))
            if vote is not None:
                yield profile.entry_alone(self._operators[operator], vote, ALONE)
