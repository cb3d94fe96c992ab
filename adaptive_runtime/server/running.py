"""One running service: binds, opens the model, serves until a signal, answers accepted requests, ends."""

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.priority import run_at
from adaptive_runtime.base.telemetry import metrics_export
from adaptive_runtime.server.answering import ModelService
from adaptive_runtime.server.local import listening, serve_local
from adaptive_runtime.server.models import ServedModel
from adaptive_runtime.server.options import ServiceOptions
from adaptive_runtime.server.pages import PATHS
from adaptive_runtime.server.remembered import ChoiceMemory
from adaptive_runtime.server.routes import create_app
from adaptive_runtime.server.waiting import RequestQueue
from adaptive_runtime.state.traces import LoadRecorder
from profiling_agents.messages import MIB
from profiling_agents.network.endpoint import address, bound, check_bind
from profiling_agents.network.folder import ended_by_signal, private_folder
from profiling_agents.network.guard import GuardRules
from profiling_agents.network.server import http_server, serve_with
from profiling_agents.network.tokens import new_token

LOG = logging.getLogger("adaptive_runtime")
READY = "service ready: "
"""The words before the address in the line that the service prints when it is ready."""
SHUTDOWN_S = 30
OBSERVE_S = 0.2
RECORD_S = 60.0
MOST_CONNECTIONS = 16_384
OWN_FILES = 128
"""Files that the service opens besides connections."""
SWITCH_S = 5e-4
"""Interval after which a waiting thread requests the interpreter: Python's 5 ms are a large part of a request's time."""


def serve(options: ServiceOptions, opening: AbstractContextManager[ServedModel]) -> None:
    """Run until stopped. opening: opens the model, once the port is bound. AdaptiveError, AgentError: it cannot start."""
    network = options.network
    check_bind(network)
    _check_room(options.load_trace)
    if options.niceness is not None:
        run_at(options.niceness)
    sys.setswitchinterval(SWITCH_S)
    with (
        ended_by_signal(),
        _token(network.token) as token,
        bound(network.host, network.port) as listener,
        listening(options.socket) as local,
        opening as model,
    ):
        if local is not None and (problem := model.format.problem) is not None:
            got = f"its frames have a class for each image, and the bundle is for {problem}"
            raise AdaptiveError("--socket", got, next_step="leave it out: HTTP tells them")
        asyncio.run(_serve(options, listener, local, model, token))


@contextmanager
def _token(given: str | None) -> Iterator[str]:
    """The user's token, else a new one in a private folder on disk."""
    if given is not None:
        yield given
        return
    with ExitStack() as stack:
        try:
            token = new_token(stack.enter_context(private_folder()), "service")
        except OSError as error:
            raise AdaptiveError(
                "token", f"cannot be written ({error.strerror})", next_step="give --token-file"
            ) from error
        yield token


async def _serve(
    options: ServiceOptions, listener: socket.socket, local: socket.socket | None, model: ServedModel, token: str
) -> None:
    queue = RequestQueue(model.infer, options.queue, options.workers)
    name, version = options.model_name, model.version
    recorder = None if options.load_trace is None else LoadRecorder(f"model '{name}', as it was served")
    service = ModelService(model, queue, name=name, deadline_ms=options.deadline_ms, recorder=recorder)
    connections, most_bytes = _connections(), options.max_body_mib * MIB
    path = f"/v2/models/{name}"
    paths = (f"{path}/infer", f"{path}/versions/{version}/infer")
    rules = GuardRules(
        connections=connections,
        requests=connections,
        body_bytes=dict.fromkeys(paths, most_bytes),
        open_paths=PATHS,
        shutdown_s=SHUTDOWN_S,
    )
    server = http_server(options.network, create_app(service), token, rules)
    ready = f"{READY}{address(options.network, listener)}"
    works = [*(queue.work() for _ in range(options.workers)), _observe(service, model.memory)]
    works += metrics_export("autotailor-service", service.metrics.families)
    if local is not None:
        works.append(serve_local(local, service, most_bytes))
    if recorder is not None and options.load_trace is not None:
        works.append(_record(recorder, options.load_trace))
    try:
        await serve_with(server, listener, options.network, ready, *works)
    finally:
        queue.close()
        if recorder is not None and options.load_trace is not None:
            _write(recorder, options.load_trace)
        if model.memory is not None:
            model.memory.write(model.state().serving)


async def _observe(service: ModelService, memory: ChoiceMemory | None) -> None:
    """Report and remember the serving variant."""
    while True:
        state = service.observe()
        if memory is not None and memory.written != state.serving:
            await asyncio.to_thread(memory.write, state.serving)
        await asyncio.sleep(OBSERVE_S)


def _check_room(file: Path | None) -> None:
    """AdaptiveError: the file could not be written."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise AdaptiveError(str(file), "cannot be written", next_step="give a file in a folder that is there")


async def _record(recorder: LoadRecorder, file: Path) -> None:
    """Write the trace periodically, so that little is lost if the process is killed."""
    while True:
        await asyncio.sleep(RECORD_S)
        _write(recorder, file)


def _write(recorder: LoadRecorder, file: Path) -> None:
    """Write the trace so far. A failure or an empty trace is logged in one line."""
    try:
        recorder.trace.write(file)
    except AdaptiveError as error:
        LOG.warning("%s; %s is not written", error, file)
    except OSError as error:
        LOG.warning("%s cannot be written (%s)", file, error.strerror)


def _connections() -> int:
    """The number of connections that may be open at once, from the system's limit for this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS + OWN_FILES
    files = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, 4 * (files - OWN_FILES) // 5)  # a fourth as many have not shown a token yet (`network.places`)
