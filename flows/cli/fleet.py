"""`autotailor fleet`: a registry of devices, their tables, and roll-outs of bundles, with an action for each word.

The config of a registry has settings for its services and their clients. `autotailor fleet profile` measures one table
for each kind of device, and devices check each other; only this action loads torch.
"""

import getpass
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from rich.markup import escape
from rich.table import Table
from sqlalchemy.exc import SQLAlchemyError

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal, TerminalProgress, age
from profiling_agents.network.endpoint import Endpoint, read_token
from tasks.base.errors import UserError, shortened
from tasks.operations.fleet.devices import (
    BundleStore,
    bundle_named,
    list_devices,
    new_enrolment,
    note_verdict,
    remove_device,
)
from tasks.operations.fleet.registry import Registry
from tasks.operations.fleet.rollouts import RolloutRow, begin, go_on, list_rollouts, stop
from tasks.operations.fleet.settings import MEASURES, FleetProfileSettings, RolloutSettings

if TYPE_CHECKING:
    from tasks.operations.fleet.profiling import FleetProfile


RelayUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+/?$")]


class FleetConfig(BaseModel):
    """The location of the registry, how it is served, and the inputs of its actions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: str = "sqlite:///fleet/fleet.db"
    files: Path = Path("fleet/files")
    window_s: float = Field(default=3600.0, gt=0, le=7 * 86400)
    host: str = "127.0.0.1"
    port: int = Field(default=8763, ge=0, le=65535)
    relay_port: int = Field(default=8764, ge=0, le=65535)
    max_model_mib: int = Field(default=512, ge=1)
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    insecure_bind: bool = False
    count: int = Field(default=1, ge=1, le=10_000)
    to: Path | None = None
    owner: str = Field(default="", max_length=256)
    valid_hours: float = Field(default=24.0, gt=0, le=24 * 366)
    name: str = Field(default="", max_length=256)
    key_file: Path | None = None
    relay: RelayUrl | None = None
    ca_file: Path | None = None
    store: Path = Path("outputs/luts")
    profile: FleetProfileSettings = FleetProfileSettings()
    kinds: tuple[str, ...] = ()
    rollout: RolloutSettings = RolloutSettings()

    @field_validator("rollout", mode="before")
    @classmethod
    def _without_left_out_measures(cls, given: object) -> object:
        """Leave out measures that are null, since these have no limits."""
        if isinstance(given, dict) and isinstance(given.get("limits"), dict):
            limits = {name: one for name, one in given["limits"].items() if one is not None or name not in MEASURES}
            return {**given, "limits": limits}
        return given


def _token_of(config: FleetConfig) -> str | None:
    """The token of clients that measure devices through a relay. AgentError if its file is unsafe to use."""
    return read_token(config.token_file, "AUTOTAILOR_RELAY_TOKEN", "token_file")


def _endpoint(config: FleetConfig, port: int, token: str | None = None) -> Endpoint:
    return Endpoint(
        host=config.host,
        port=port,
        token=token,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        insecure_bind=config.insecure_bind,
        allowed_hosts=config.allowed_hosts,
        stop_with_stdin=False,
        silence_limit_s=0,
    )


STATES = ("sound", "outlier", "failed", "unknown")


def _profile(registry: Registry, config: FleetConfig, word: str) -> Answer:
    """Profile the operators in a folder. UserError, AgentError: one line."""
    import numpy as np

    from tasks.measuring.operators import read_operators
    from tasks.operations.fleet.profiling import RelayAccess, profile_fleet  # on demand: making operators needs torch

    token = _token_of(config)
    if config.relay is None or token is None:
        next_step = "write relay=https://HOST:PORT token_file=FILE"
        raise UserError("fleet profile", "devices are measured through their relay", next_step=next_step)
    with registry.reading() as connection:
        names = [row.id for row in list_devices(connection)]
    access, operators = RelayAccess(config.relay, token, config.ca_file), read_operators(Path(word))
    with TerminalProgress() as progress:
        found = profile_fleet(names, access, operators, config.store, config.profile, np.random.default_rng(), progress)
    with registry.writing() as connection:
        for kind in found.kinds:
            for one in kind.verdicts:
                note_verdict(connection, one.device, kind.table, one.state, one.reason)
        for device, reason in found.away.items():
            note_verdict(connection, device, None, "failed", reason)
    return _show_profile(found)


def _show_profile(found: "FleetProfile") -> Answer:
    table = Table("table", "devices", *STATES, "operators", "measured now", "measurements", "time, s")
    for kind in found.kinds:
        counts = [str(sum(one.state == state for one in kind.verdicts)) for state in STATES]
        numbers = (kind.operators, kind.measured, kind.measurements, round(kind.wall_s))
        table.add_row(kind.table, str(len(kind.verdicts)), *counts, *map(str, numbers))
    Terminal().show(table)
    for one in (one for kind in found.kinds for one in kind.verdicts if one.state in ("outlier", "failed")):
        Terminal().say(f"{one.device}: {one.state}: {one.reason}")
    if found.away:
        Terminal().say(f"{len(found.away)} devices did not answer: see 'autotailor fleet devices'")
    kinds = [{**kind._asdict(), "verdicts": [one._asdict() for one in kind.verdicts]} for kind in found.kinds]
    return {"kinds": kinds, "away": dict(found.away)}


SHOWN_DIGITS = 12


def _serve(registry: Registry, config: FleetConfig, word: str) -> Answer:
    from tasks.operations.fleet.service import serve_registry

    serve_registry(registry, BundleStore(config.files), _endpoint(config, config.port))
    return {"served": True}


def _relay(registry: Registry, config: FleetConfig, word: str) -> Answer:
    from tasks.operations.fleet.service import serve_fleet_relay

    serve_fleet_relay(registry, _endpoint(config, config.relay_port, _token_of(config)), config.max_model_mib)
    return {"served": True}


def _enrol(registry: Registry, config: FleetConfig, word: str) -> Answer:
    if config.to is None:
        raise UserError("fleet enrol", "tokens go into a file", next_step="write to=FILE")
    owner = config.owner or getpass.getuser()
    with registry.writing() as connection:
        made = new_enrolment(connection, owner, valid_s=3600 * config.valid_hours, count=config.count)
        try:  # a new file that only its owner can read
            with open(os.open(config.to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
                stream.writelines(f"{one.token}\n" for one in made)
        except OSError as error:
            got = f"cannot be written ({error.strerror})"
            raise UserError(f"to={config.to}", got, next_step="name a new file") from error
    Terminal().say(f"{len(made)} tokens, each for one device, for {config.valid_hours:g} h: {config.to}")
    return {"file": str(config.to), "tokens": len(made), "owner": owner}


def _devices(registry: Registry, config: FleetConfig, word: str) -> Answer:
    with registry.reading() as connection:
        rows, now_s = list_devices(connection), time.time()
    table = Table("device", "name", "kind", "owner", "seen", "bundle", "should run", "restored", "table", "check")
    for row in rows:
        bundles = (_short(row.active), _short(row.assigned))
        restored = "" if row.restored_s is None else f"{row.restored} times, {age(now_s - row.restored_s)} ago"
        checked = "" if row.verdict is None else f"{row.verdict}: {row.verdict_reason}"
        seen = f"{age(now_s - row.seen_s)} ago"
        texts = (row.id, row.name, row.kind, row.owner, seen, *bundles, restored, row.lut or "", checked)
        table.add_row(*(escape(text) for text in texts))
    Terminal().show(table)
    return {"devices": [row._asdict() for row in rows]}


def _remove(registry: Registry, config: FleetConfig, word: str) -> Answer:
    with registry.writing() as connection:
        remove_device(connection, word)
    Terminal().say(f"{word} is no device any more")
    return {"removed": word}


def _add(registry: Registry, config: FleetConfig, word: str) -> Answer:
    folder = Path(word)
    digest = BundleStore(config.files).add(registry, folder, config.name or str(folder), config.key_file)
    Terminal().say(f"bundle {digest}; roll it out: autotailor fleet rollout {_short(digest)}")
    return {"bundle": digest}


def _rollout(registry: Registry, config: FleetConfig, word: str) -> Answer:
    with registry.writing() as connection:
        bundle = bundle_named(connection, word)
        number = begin(connection, bundle, config.rollout, config.kinds, time.time(), registry.window_s)
    _show_rollouts(registry)
    return {"rollout": number, "bundle": bundle}


def _stopped(registry: Registry, config: FleetConfig, word: str, *, goes_on: bool = False) -> Answer:
    with registry.writing() as connection:
        if goes_on:
            go_on(connection, _number(word), time.time(), registry.window_s)
        else:
            stop(connection, _number(word))
    _show_rollouts(registry)
    return {"rollout" if goes_on else "halted": _number(word)}


def _show_rollouts(registry: Registry) -> list[RolloutRow]:
    with registry.reading() as connection:
        rows = list_rollouts(connection)
    table = Table("roll-out", "bundle", "state", "stage", "devices", "last")
    for row in rows:
        reached = f"{row.reached} of {row.devices}"
        table.add_row(str(row.id), _short(row.bundle), row.state, str(row.stage), reached, escape(row.reason))
    Terminal().show(table)
    return rows


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise UserError("fleet", f"'{word}' is no number of a roll-out", next_step="see 'autotailor fleet rollouts'")
    return int(word)


def _short(digest: str | None) -> str:
    return "–" if digest is None else digest[:SHOWN_DIGITS]


ACTIONS: dict[str, Callable[[Registry, FleetConfig, str], Answer]] = {
    "serve": _serve,
    "relay": _relay,
    "enrol": _enrol,
    "devices": _devices,
    "remove": _remove,
    "profile": _profile,
    "add": _add,
    "rollout": _rollout,
    "rollouts": lambda registry, config, word: {"rollouts": [row._asdict() for row in _show_rollouts(registry)]},
    "halt": _stopped,
    "go-on": partial(_stopped, goes_on=True),
}


def execute(arguments: Arguments, config: FleetConfig) -> Answer:
    """Execute the action, show its result, and return it as JSON. UserError, AdaptiveError, AgentError: one line."""
    action, word = (*arguments.words, "")[:2]
    registry = Registry.open(config.database, config.window_s)
    try:
        return ACTIONS[action](registry, config, word)
    except SQLAlchemyError as error:
        got = f"failed ({shortened(getattr(error, 'orig', None) or error)})"  # `error` itself contains the statement
        raise UserError(registry.where, got, next_step="try again when it is there") from error
    finally:
        registry.close()
