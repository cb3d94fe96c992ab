"""`autotailor fleet profile`: the devices of a registry measure one table for each kind, and check each other."""

from pathlib import Path

import numpy as np
from rich.table import Table

from flows.cli.arguments import FLEET
from flows.cli.fleet.config import FleetConfig
from flows.cli.fleet.network import FleetAnswer, token_of
from flows.cli.terminal import Terminal, TerminalProgress
from tasks.base.errors import UserError
from tasks.measuring.enumerate import read_operators
from tasks.operations.fleet.profiling.asking import RelayAccess
from tasks.operations.fleet.profiling.sharing import FleetProfile, profile_fleet
from tasks.operations.fleet.registry import Registry, list_devices, note_verdict

STATES = ("sound", "odd", "failed", "unknown")


def profile(registry: Registry, config: FleetConfig, word: str) -> FleetAnswer:
    """Profile the operators in a folder. UserError, AgentError: one line."""
    token = token_of(config)
    if config.relay is None or token is None:
        next_step = "write relay=https://HOST:PORT token_file=FILE"
        raise UserError(f"{FLEET} profile", "devices are measured through their relay", next_step=next_step)
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


def _show_profile(found: FleetProfile) -> FleetAnswer:
    table = Table("table", "devices", *STATES, "operators", "measured now", "measurements", "time, s")
    for kind in found.kinds:
        counts = [str(sum(one.state == state for one in kind.verdicts)) for state in STATES]
        numbers = (kind.operators, kind.measured, kind.measurements, round(kind.wall_s))
        table.add_row(kind.table, str(len(kind.verdicts)), *counts, *map(str, numbers))
    Terminal().show(table)
    for kind in found.kinds:
        for one in kind.verdicts:
            if one.state in ("odd", "failed"):
                Terminal().say(f"{one.device}: {one.state}: {one.reason}")
    if found.away:
        Terminal().say(f"{len(found.away)} devices did not answer: see 'autotailor {FLEET} devices'")
    kinds = [{**kind._asdict(), "verdicts": [one._asdict() for one in kind.verdicts]} for kind in found.kinds]
    return {"kinds": kinds, "away": dict(found.away)}
