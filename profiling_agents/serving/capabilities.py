"""The description of an agent's device with its fingerprint, the options of an agent, and the sandbox around its child.

Measurements are comparable by the fingerprint. Options come from the command line. Each missing part of the sandbox has
a warning.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling_agents.backends import ELSEWHERE
from profiling_agents.execution.bench import RULES_VERSION
from profiling_agents.execution.settings import ModelLimits
from profiling_agents.messages import MAX_TENSORS_MIB, PROTOCOL, Capabilities, Precision, RuntimeInfo, Sandbox
from profiling_agents.network.endpoint import Endpoint
from profiling_agents.sandbox.entering import PlannedSandbox, free_user
from profiling_agents.sensing import machine, sensors
from profiling_agents.sensing.energy import gpu_sensors
from profiling_agents.sensing.machine import Claim
from profiling_agents.sensing.sensors import SYSTEM, core_kind, cpu_model, frequency_mhz, frequency_state, governor


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of an agent. segments: serve segments of at most `max_subnets` SubNets, and measure nothing.

    allowed_peers: `HOST:PORT` of other devices to which it may give the outputs of its segments.
    """

    backend: str
    threads: int
    precision: Precision
    provider: str | None
    cores: tuple[int, ...] | None
    network: Endpoint
    pull: str | None
    ca_file: Path | None
    limits: ModelLimits
    max_model_mib: int
    max_subnets: int
    pin_mhz: int | None = None
    sensors_root: Path = sensors.SYSTEM
    sandbox: bool = True
    segments: bool = False
    allowed_peers: tuple[str, ...] = ()

    @property
    def cores_root(self) -> Path:
        """The folder of the cores' files."""
        return sensors.cores_root(self.sensors_root)


def sandbox_plan(options: ServerOptions, models: Path) -> PlannedSandbox | None:
    """Make the folder of the models, and plan the sandbox of the process that runs them; None for no sandbox."""
    models.mkdir(mode=0o700)
    if not options.sandbox or options.backend in ELSEWHERE:
        return None
    user = free_user()
    if user is not None:
        os.chown(models, user, user)
    readable = () if options.sensors_root == sensors.SYSTEM else (options.sensors_root / "sys",)
    accelerator = (options.provider or "cpu").lower() not in ("cpu", "cpuexecutionprovider")
    return PlannedSandbox(folder=models, user=user, readable=readable, accelerator=accelerator)


def described(options: ServerOptions, sandbox: Sandbox) -> Sandbox:
    """The sandbox for clients, including parts that were not planned; prints a line on stderr for each missing part."""
    if options.backend in ELSEWHERE:
        return sandbox
    if not options.sandbox:
        sandbox = Sandbox(missing=("all: models can do what the agent's user can (--without-sandbox)",))
    for line in sandbox.missing:
        print(f"the agent's sandbox lacks {line}", file=sys.stderr, flush=True)
    return sandbox


def capabilities(options: ServerOptions, claimed: Claim, runtime: RuntimeInfo, sandbox: Sandbox) -> Capabilities:
    """The device's description for clients."""
    cores, root = claimed.cores, options.cores_root
    pinned = sys.platform == "linux"
    return Capabilities.model_validate(
        runtime.model_dump()
        | {
            "protocol": PROTOCOL,
            "threads": options.threads,
            "cores": cores,
            "cores_shared": claimed.shared,
            "pinned": pinned,
            "cpu_model": sensors.cpu_model(),
            "machine": platform.machine(),
            "system": platform.platform(),
            "governor": sensors.governor(cores[0], root),
            "frequency_mhz": sensors.frequency_mhz(cores[0], root=root),
            "frequency_state": sensors.frequency_state(cores[0], root),
            "operating_system": sensors.operating_system(),
            "running_system": machine.running_system(),
            "power_sensors": (*sensors.power_sensors(options.sensors_root), *gpu_sensors()),
            "state": sensors.state(machine.available_cores(), root),
            "memory_mib": machine.memory_mib(),
            "memory_limit_mib": options.limits.memory_mib,
            "cpu_limit_s": options.limits.cpu_s,
            "wall_limit_s": options.limits.wall_s,
            "max_model_mib": options.max_model_mib,
            "max_tensors_mib": MAX_TENSORS_MIB,
            "walls": sandbox,
            "fingerprint": fingerprint(runtime, cores, options.threads, pinned, root),
        }
    )


def fingerprint(runtime: RuntimeInfo, cores: Sequence[int], threads: int, pinned: bool, root: Path = SYSTEM) -> str:
    """sha256 (hex) over all properties that latency depends on: equal fingerprints mean comparable measurements.

    Runtime build, precision, threads, processor, kind (not number) of the cores, governor, frequency if pinned, measuring
    rules.
    The client adds the choices of its engine.
    """
    others = [one for one in runtime.precisions if one != "int8"]  # existing tables are older than the probe for int8

    def frequency(core: int) -> str:
        """The state of a core's frequency; with the frequency [MHz] if pinned."""
        state = frequency_state(core, root)
        return f"{state} {frequency_mhz(core, 'max', root):g}" if state == "pinned" else state

    facts = {
        "runtime": runtime.model_dump(exclude={"engine_options", "settings"}) | {"precisions": others},
        "threads": threads,
        "pinned": pinned,
        "cpu_model": cpu_model(),
        "machine": platform.machine(),
        "system": platform.system(),
        "core_kinds": sorted({str(core_kind(core, root)) for core in cores}),
        "governors": sorted({str(governor(core, root)) for core in cores}),
        "frequency": sorted({frequency(core) for core in cores}),
        "rules": RULES_VERSION,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
