"""One running agent: claims cores, binds, starts the child, serves until a signal or its parent's end."""

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

from profiling_agents import frames
from profiling_agents.execution.bench import WorkerSettings
from profiling_agents.execution.child import MODELS
from profiling_agents.execution.runner import Runner
from profiling_agents.messages import MAX_TENSORS_MIB, MIB, AgentError
from profiling_agents.network.endpoint import address, bound, check_bind
from profiling_agents.network.folder import private_folder
from profiling_agents.network.guard import MAX_CONNECTIONS, GuardRules
from profiling_agents.network.server import http_server, serve_with
from profiling_agents.network.tokens import new_token
from profiling_agents.sensing.cores import Claim, claim
from profiling_agents.sensing.frequency import pinned_frequency
from profiling_agents.serving.capabilities import capabilities
from profiling_agents.serving.options import ServerOptions
from profiling_agents.serving.planned_sandbox import sandbox_plan, told
from profiling_agents.serving.puller import Local, Puller, check_relay
from profiling_agents.serving.segments.server import serve_segments
from profiling_agents.serving.service import Agent, create_app
from profiling_agents.serving.store import ModelFiles
from profiling_agents.startup import READY

STORE_FACTOR = 4
"""The model store has room for this many models of the largest size."""


def serve(options: ServerOptions) -> None:
    """Run until stopped; AgentError when it cannot start."""
    network = options.network
    check_bind(network)
    if options.segments and options.pull is not None:
        raise AgentError("--serve-segments: not with --pull, since a stream is one kept connection; give one of them")
    if options.allowed_peers and not options.segments:
        raise AgentError("--allow-peer: for --serve-segments alone, which is not given; give both")
    if options.pull is not None:
        check_relay(options.pull, network)
        # The relay is the only way in: nobody can reach the service itself without reading this process's memory.
        network = replace(network, port=0, token=os.urandom(32).hex())
    with private_folder() as folder, bound(network.host, network.port) as listener:
        claimed = claim(options.threads, options.cores)
        with pinned_frequency(claimed.cores, options.pin_mhz, options.cores_root):
            token = network.token or new_token(folder, "agent")
            settings = _worker(options, folder, claimed)
            if options.segments:
                asyncio.run(serve_segments(options, settings, folder, listener, token))
            else:
                asyncio.run(_serve(options, settings, folder, listener, claimed, token))


def _worker(options: ServerOptions, folder: Path, claimed: Claim) -> WorkerSettings:
    return WorkerSettings(
        backend=options.backend,
        threads=options.threads,
        precision=options.precision,
        provider=options.provider,
        sensors_root=options.sensors_root,
        cores=claimed.cores,
        limits=options.limits,
        sandbox=sandbox_plan(options, folder / MODELS),
        max_payload_bytes=MAX_TENSORS_MIB * MIB,
        segments=options.segments,
    )


async def _serve(
    options: ServerOptions,
    settings: WorkerSettings,
    folder: Path,
    listener: socket.socket,
    claimed: Claim,
    token: str,
) -> None:
    runner = Runner(settings, folder)
    try:
        runtime, sandbox = await runner.start()
        found = capabilities(options, claimed, runtime, told(options, sandbox))
        models = ModelFiles(
            folder / MODELS,
            STORE_FACTOR * options.max_model_mib * MIB,
            None if settings.sandbox is None else settings.sandbox.user,
        )
        agent = Agent(found, runner, models, options.cores_root)
        body_bytes = {
            "/v1/models": options.max_model_mib * MIB,
            "/v1/run": MAX_TENSORS_MIB * MIB + frames.MAX_HEADER_BYTES,
        }
        server = http_server(options.network, create_app(agent), token, GuardRules(body_bytes=body_bytes))
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
