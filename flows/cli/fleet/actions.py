"""The actions of `autotailor fleet`, one for each word."""

import getpass
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from flows.cli.arguments import FLEET
from flows.cli.fleet.config import FleetConfig
from flows.cli.fleet.network import FleetAnswer, endpoint, token_of
from flows.cli.terminal import Terminal
from tasks.base.errors import UserError
from tasks.operations.fleet.registry import (
    BundleStore,
    Registry,
    RolloutRow,
    begin,
    bundle_named,
    go_on,
    list_devices,
    list_rollouts,
    new_enrolment,
    remove_device,
    stop,
)

SHOWN_DIGITS = 12


def _serve(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    from tasks.operations.fleet.service import serve_registry

    serve_registry(registry, BundleStore(config.files), endpoint(config, config.port))
    return {"served": True}


def _relay(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    from tasks.operations.fleet.service import serve_fleet_relay

    serve_fleet_relay(registry, endpoint(config, config.relay_port, token_of(config)), config.max_model_mib)
    return {"served": True}


def _enrol(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    if config.to is None:
        raise UserError(f"{FLEET} enrol", "tokens go into a file", next_step="write to=FILE")
    owner = config.owner or getpass.getuser()
    with registry.writing() as connection:
        made = new_enrolment(connection, owner, valid_s=3600 * config.valid_hours, count=config.count)
        _write_tokens([one.token for one in made], config.to)
    Terminal().say(f"{len(made)} tokens, each for one device, for {config.valid_hours:g} h: {config.to}")
    return {"file": str(config.to), "tokens": len(made), "owner": owner}


def _write_tokens(tokens: Sequence[str], file: Path) -> None:
    """Write tokens into a new file that only its owner can read."""
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.writelines(f"{token}\n" for token in tokens)
    except OSError as error:
        raise UserError(f"to={file}", f"cannot be written ({error.strerror})", next_step="name a new file") from error


def _devices(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    with registry.reading() as connection:
        rows, now_s = list_devices(connection), time.time()
    table = Table("device", "name", "kind", "owner", "seen", "bundle", "should run", "restored", "table", "check")
    for row in rows:
        bundles = (_short(row.active), _short(row.assigned))
        restored = "" if row.restored_s is None else f"{row.restored} times, {_ago(now_s - row.restored_s)}"
        checked = "" if row.verdict is None else f"{row.verdict}: {row.verdict_reason}"
        seen = _ago(now_s - row.seen_s)
        texts = (row.id, row.name, row.kind, row.owner, seen, *bundles, restored, row.lut or "", checked)
        table.add_row(*(escape(text) for text in texts))
    Terminal().show(table)
    return {"devices": [row._asdict() for row in rows]}


def _remove(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    with registry.writing() as connection:
        remove_device(connection, word)
    Terminal().say(f"{word} is no device any more")
    return {"removed": word}


def _profile(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    from flows.cli.fleet.profiling import profile  # on demand, because making operators needs torch

    return profile(registry, config, word)


def _add(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    folder = Path(word)
    digest = BundleStore(config.files).add(registry, folder, config.name or str(folder), config.key_file)
    Terminal().say(f"bundle {digest}; roll it out: autotailor {FLEET} rollout {_short(digest)}")
    return {"bundle": digest}


def _rollout(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    with registry.writing() as connection:
        bundle = bundle_named(connection, word)
        number = begin(connection, bundle, config.rollout, config.kinds, time.time(), registry.window_s)
    _show_rollouts(registry)
    return {"rollout": number, "bundle": bundle}


def _rollouts(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    return {"rollouts": [row._asdict() for row in _show_rollouts(registry)]}


def _halt(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    with registry.writing() as connection:
        stop(connection, _number(word))
    _show_rollouts(registry)
    return {"halted": _number(word)}


def _go_on(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    with registry.writing() as connection:
        go_on(connection, _number(word), time.time(), registry.window_s)
    _show_rollouts(registry)
    return {"rollout": _number(word)}


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
        raise UserError(FLEET, f"'{word}' is no number of a roll-out", next_step=f"see 'autotailor {FLEET} rollouts'")
    return int(word)


def _short(digest: str | None) -> str:
    return "–" if digest is None else digest[:SHOWN_DIGITS]


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


ACTIONS: dict[str, Callable[[Registry, FleetConfig, str], FleetAnswer]] = {
    "serve": _serve,
    "relay": _relay,
    "enrol": _enrol,
    "devices": _devices,
    "remove": _remove,
    "profile": _profile,
    "add": _add,
    "rollout": _rollout,
    "rollouts": _rollouts,
    "halt": _halt,
    "go-on": _go_on,
}
