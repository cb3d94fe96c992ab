"""`autotailor fleet`: a registry of devices, and roll-outs of bundles."""

import getpass
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from sqlalchemy import Connection

from flows.cli.arguments import FLEET, Arguments
from flows.cli.terminal import Terminal
from flows.cli.words import FLEET_ACTIONS
from flows.compose import compose_config
from flows.groups import nearest
from flows.validate import validate
from tasks.errors import UserError
from tasks.fleet.registry import (
    BundleStore,
    Registry,
    begin,
    bundle_named,
    go_on,
    list_devices,
    list_rollouts,
    new_enrolment,
    remove_device,
    stop,
)

if TYPE_CHECKING:
    from flows.config.fleet import FleetConfig

FleetAnswer = Mapping[str, Any]
SHOWN_DIGITS = 12
FORMS = {form.split()[0]: form for form in FLEET_ACTIONS}
PLACE = ("database", "window_s")
OPTIONS = {
    "serve": (*PLACE, "files", "host", "port", "tls_cert", "tls_key", "allowed_hosts", "insecure_bind"),
    "enrol": (*PLACE, "count", "to", "owner", "valid_hours"),
    "devices": PLACE,
    "remove": PLACE,
    "add": (*PLACE, "files", "name", "key_file"),
    "rollout": (*PLACE, "kinds", "rollout"),
    "rollouts": PLACE,
    "halt": PLACE,
    "go-on": PLACE,
}


def execute(arguments: Arguments) -> FleetAnswer:
    """Execute the command, show its result, and return it as JSON. UserError, AdaptiveError, AgentError: one line."""
    action, word = check(arguments)
    config = config_of(arguments)
    registry = Registry.open(config.database, config.window_s)
    try:
        if action == "serve":
            return _serve(registry, config)
        with registry.writing() as connection:
            return ACTIONS[action](connection, config, word, registry.window_s)
    finally:
        registry.close()


def config_of(arguments: Arguments) -> "FleetConfig":
    """The validated config."""
    from flows.config.fleet import FleetConfig

    return validate(FleetConfig, compose_config(FLEET, arguments.overrides, arguments.config_folder))


def check(arguments: Arguments) -> tuple[str, str]:
    """The action and its word. UserError: unknown, too few or many words, or options that it does not have."""
    action, words = (*arguments.words[:1], "")[0], arguments.words[1:]
    if action not in FORMS:
        hint = nearest(action, FORMS) or f"see 'autotailor {FLEET} --help'"
        got = f"'{action}' is unknown" if action else "nothing to do"
        raise UserError(FLEET, got, allowed=", ".join(FLEET_ACTIONS), next_step=hint)
    if len(words) != len(FORMS[action].split()) - 1:
        raise UserError(
            f"{FLEET} {action}", f"got {len(words)} names", next_step=f"write autotailor {FLEET} {FORMS[action]}"
        )
    for override in arguments.overrides:
        key = override.split("=", 1)[0].lstrip("+~")
        if key.split(".")[0] not in OPTIONS[action]:
            raise UserError(f"option '{key}'", f"is not one of '{FLEET} {action}'", allowed=", ".join(OPTIONS[action]))
    return action, (*words, "")[0]


def _serve(registry: Registry, config: "FleetConfig") -> FleetAnswer:
    from profiling_agents.network.endpoint import Endpoint
    from tasks.fleet.service import serve_registry

    network = Endpoint(
        host=config.host,
        port=config.port,
        token=None,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        insecure_bind=config.insecure_bind,
        allowed_hosts=config.allowed_hosts,
        stop_with_stdin=False,
        silence_limit_s=0,
    )
    serve_registry(registry, BundleStore(config.files), network)
    return {"served": True}


def _enrol(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    if config.to is None:
        raise UserError(f"{FLEET} enrol", "tokens go into a file", next_step="write to=FILE")
    owner = config.owner or getpass.getuser()
    made = new_enrolment(connection, owner, valid_s=3600 * config.valid_hours, count=config.count)
    try:
        with open(os.open(config.to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.writelines(f"{one.token}\n" for one in made)
    except OSError as error:
        raise UserError(
            f"to={config.to}", f"cannot be written ({error.strerror})", next_step="name a new file"
        ) from error
    Terminal().say(f"{len(made)} tokens, each for one device, for {config.valid_hours:g} h: {config.to}")
    return {"file": str(config.to), "tokens": len(made), "owner": owner}


def _devices(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    rows, now_s = list_devices(connection), time.time()
    table = Table("device", "name", "kind", "owner", "seen", "bundle", "should run")
    for row in rows:
        bundles = (_short(row.active), _short(row.assigned))
        texts = (row.id, row.name, row.kind, row.owner, _ago(now_s - row.seen_s), *bundles)
        table.add_row(*(escape(text) for text in texts))
    Terminal().show(table)
    return {"devices": [row._asdict() for row in rows]}


def _remove(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    remove_device(connection, word)
    Terminal().say(f"{word} is no device any more")
    return {"removed": word}


def _add(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    folder = Path(word)
    digest = BundleStore(config.files).add(connection, folder, config.name or str(folder), config.key_file)
    Terminal().say(f"bundle {digest}; roll it out: autotailor {FLEET} rollout {_short(digest)}")
    return {"bundle": digest}


def _rollout(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    bundle = bundle_named(connection, word)
    number = begin(connection, bundle, config.rollout, config.kinds, time.time(), window_s)
    _show_rollouts(connection)
    return {"rollout": number, "bundle": bundle}


def _rollouts(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    _show_rollouts(connection)
    return {"rollouts": [row._asdict() for row in list_rollouts(connection)]}


def _halt(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    stop(connection, _number(word))
    _show_rollouts(connection)
    return {"halted": _number(word)}


def _go_on(connection: Connection, config: "FleetConfig", word: str, window_s: float) -> FleetAnswer:
    go_on(connection, _number(word), time.time(), window_s)
    _show_rollouts(connection)
    return {"rollout": _number(word)}


def _show_rollouts(connection: Connection) -> None:
    table = Table("roll-out", "bundle", "state", "stage", "devices", "last")
    for row in list_rollouts(connection):
        reached = f"{row.reached} of {row.devices}"
        table.add_row(str(row.id), _short(row.bundle), row.state, str(row.stage), reached, escape(row.reason))
    Terminal().show(table)


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


ACTIONS: dict[str, Callable[[Connection, "FleetConfig", str, float], FleetAnswer]] = {
    "enrol": _enrol,
    "devices": _devices,
    "remove": _remove,
    "add": _add,
    "rollout": _rollout,
    "rollouts": _rollouts,
    "halt": _halt,
    "go-on": _go_on,
}
