"""One running agent: claims cores, binds, starts the child, serves until a signal or its parent's end."""

import asyncio
import os
import platform
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from profiling_agents import frames, machine, sensors
from profiling_agents.cores import Claim, claim
from profiling_agents.energy import gpu_sensors
from profiling_agents.folder import private_folder
from profiling_agents.frequency import pinned_frequency
from profiling_agents.limits import Limits
from profiling_agents.local import READY
from profiling_agents.messages import MAX_TENSORS_MIB, MIB, Capabilities, Precision, RuntimeInfo
from profiling_agents.network import (
    MAX_CONNECTIONS,
    Network,
    address,
    bound,
    check_bind,
    check_relay,
    http_server,
    new_token,
    serve_with,
)
from profiling_agents.puller import Local, Puller
from profiling_agents.runner import Runner
from profiling_agents.service import Agent, create_app
from profiling_agents.store import ModelFiles
from profiling_agents.worker import WorkerSettings

PROTOCOL = 2
STORE_FACTOR = 4
"""The model store holds so many models of the largest size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Everything the command line decides."""

    backend: str
    threads: int
    precision: Precision
    provider: str | None
    cores: tuple[int, ...] | None
    network: Network
    pull: str | None
    ca_file: Path | None
    limits: Limits
    max_model_mib: int
    pin_mhz: int | None = None
    sensors_root: Path = sensors.SYSTEM

    @property
    def cores_root(self) -> Path:
        """Where the cores' files are."""
        return sensors.cores_root(self.sensors_root)


def serve(options: ServerOptions) -> None:
    """Run until stopped; AgentError when it cannot start."""
    network = options.network
    check_bind(network)
    if options.pull is not None:
        check_relay(options.pull, network)
        # The relay is the only way in: the service itself is reached by nobody who has not read this process.
        network = replace(network, port=0, token=os.urandom(32).hex())
    with private_folder() as folder, bound(network.host, network.port) as listener:
        claimed = claim(options.threads, options.cores)
        with pinned_frequency(claimed.cores, options.pin_mhz, options.cores_root):
            token = network.token or new_token(folder)
            asyncio.run(_serve(options, folder, listener, claimed, token))


async def _serve(options: ServerOptions, folder: Path, listener: socket.socket, claimed: Claim, token: str) -> None:
    settings = WorkerSettings(
        backend=options.backend,
        threads=options.threads,
        precision=options.precision,
        provider=options.provider,
        sensors_root=options.sensors_root,
        cores=claimed.cores,
        limits=options.limits,
        max_payload_bytes=MAX_TENSORS_MIB * MIB,
    )
    runner = Runner(settings, folder)
    try:
        capabilities = _capabilities(options, claimed, await runner.start())
        models = ModelFiles(folder, STORE_FACTOR * options.max_model_mib * MIB)
        agent = Agent(capabilities, runner, models, options.cores_root)
        body_bytes = {
            "/v1/models": options.max_model_mib * MIB,
            "/v1/run": MAX_TENSORS_MIB * MIB + frames.MAX_HEADER_BYTES,
        }
        server = http_server(options.network, create_app(agent), token, body_bytes)
        listener.listen(MAX_CONNECTIONS)
        url = address(options.network, listener)
        pulling = []
        if options.pull is not None:
            assert options.network.token is not None
            puller = Puller(options.pull, options.network.token, options.ca_file, Local(url, token))
            await puller.connect()
            pulling.append(puller.work())
            url = options.pull
        await serve_with(server, listener, options.network, f"{READY}{url}", agent.jobs.work(), *pulling)
    finally:
        await runner.close()


def _capabilities(options: ServerOptions, claimed: Claim, runtime: RuntimeInfo) -> Capabilities:
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
            "fingerprint": machine.fingerprint(runtime, cores, options.threads, pinned, root),
        }
    )
