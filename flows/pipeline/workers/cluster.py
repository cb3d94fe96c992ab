"""The driver's side: batches of SubNets along the tree of their common first steps, submitted to Dask workers.

Dask places batches, and repeats them if a worker dies. Tasks are strings (`flows.pipeline.workers.process`). Dask's own
protocol pickles and unpickles, so every peer of it is trusted: docs/security.md.
"""

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster, Security
from distributed.client import FutureCancelledError

from flows.config.settings import EvaluateSettings
from flows.pipeline.workers.process import WorkerAnswer, WorkerTask, evaluate, versions
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError, shortened
from tasks.data.source import listing_of
from tasks.evaluation.batches import EvaluationBatch
from tasks.evaluation.quantise import Int8
from tasks.evaluation.subnets import UPDATE_SECONDS, Accuracy, EvaluationData, FinishedSubNets, pieces_of

CONNECT_S = 20.0
WITHOUT_WORKERS_S = 60.0
"""Longest time that a scheduler may be without workers [s]."""
LOOPBACK = "127.0.0.1"
QUIET: dict[str, Any] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
}
"""Dask's config for processes of this machine: no web pages, and no profiling of themselves."""
TLS_SETTINGS = "distributed.comm.tls.ca-file and distributed.comm.tls.client.cert and .key"
SECURITY_PAGE = "docs/security.md says how"
HERE = "evaluate.workers=null evaluates in this process"


class DaskWorkers:
    """Worker processes of this machine, or of a scheduler elsewhere. Use as a context.

    They are started or connected on first use.
    """

    def __init__(self, settings: EvaluateSettings) -> None:
        self._settings = settings
        self._where = f"evaluate.workers={settings.workers}"
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._client: Client | None = None
        self._digests: dict[Path, str] = {}

    def __enter__(self) -> "DaskWorkers":
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._client = None
            self._stack.close()

    def connect(self) -> Client:
        """The client of the scheduler. UserError if no scheduler answers, or it has no workers."""
        with self._lock:
            if self._client is None:
                logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # losses are reported in one line
                self._client = self._started() if self._processes else self._reached()
            return self._client

    @property
    def _processes(self) -> int:
        """Number of processes on this machine, at most its cores, as more would only compete. 0: a scheduler is used."""
        return min(self._settings.processes, len(os.sched_getaffinity(0)))

    def evaluated(
        self, net: SuperNet, configs: Mapping[str, Config], data: EvaluationData
    ) -> Generator[FinishedSubNets, None, None]:
        """Implements `tasks.evaluation.subnets.EvaluationWorkers`.

        UserError if there are no workers (any more), or they cannot evaluate these SubNets.
        """
        if not configs:
            return
        client = self.connect()
        done: queue.SimpleQueue[Future[str]] = queue.SimpleQueue()
        waiting: dict[object, Future[str]] = {}
        left = len(configs)
        try:
            workers = _Workers(client, self._where)
            for task in self.tasks(net, configs, data, workers.count):
                future = client.submit(evaluate, task, pure=False)
                waiting[future.key] = future
                future.add_done_callback(done.put)
            while waiting:
                found = dict[str, Accuracy]()
                try:
                    ready = done.get(timeout=UPDATE_SECONDS)
                    if (answer := workers.answer(ready)) is None:
                        done.put(ready)
                        workers.look()
                    else:
                        found = answer
                        del waiting[ready.key]
                except queue.Empty:
                    workers.look()
                left -= len(found)
                yield FinishedSubNets(found, f"{workers.count} workers")
        except _Lost as error:
            kept = f"{len(configs) - left} of {len(configs)} SubNets of this step are evaluated and kept"
            raise UserError(self._where, f"{error}; {kept}", next_step="the same command goes on") from error
        finally:
            if waiting and client.status == "running":
                client.cancel(list(waiting.values()))

    def tasks(self, net: SuperNet, configs: Mapping[str, Config], data: EvaluationData, workers: int) -> Iterator[str]:
        """Batches for workers as JSON, those with the most work first."""
        assert net.folder is not None
        assert data.precision is None or isinstance(data.precision, Int8)
        recipe = data.recipe
        if self._processes:  # they share this machine's memory
            recipe = recipe.model_copy(update={"features_mib": recipe.features_mib / self._processes})
        if recipe.data.path is not None:
            whole = recipe.data.model_copy(update={"path": recipe.data.path.resolve()})  # workers have other folders
            recipe = recipe.model_copy(update={"data": whole, "files": listing_of(recipe.data.path)})
        if net.folder not in self._digests:
            self._digests[net.folder] = digest_of(net.folder)
        for piece in pieces_of(net, configs, data, workers):
            codes = net.space.encode([configs[digest] for digest in piece]).tolist()
            batch = EvaluationBatch(
                supernet=net.folder,
                supernet_digest=self._digests[net.folder],
                images=recipe,
                subnets=dict(zip(piece, map(tuple, codes), strict=True)),
                threads=self._settings.threads,
            )
            int8 = None if data.precision is None else data.precision.settings
            yield WorkerTask(versions=versions(), batch=batch, int8=int8).model_dump_json()

    def _started(self) -> Client:
        """Client of processes on this machine. They listen on loopback only, and accept peers with the key that they get: TLS.

        Dask's own environment for them has a malloc setting (`MALLOC_TRIM_THRESHOLD_`) that maps torch's tensors anew each
        time: evaluation takes twice as long with it.
        """
        environment = {"OMP_NUM_THREADS": self._settings.threads}
        with dask.config.set({**QUIET, "distributed.nanny.pre-spawn-environ": environment}):
            cluster = LocalCluster(
                n_workers=self._processes,
                threads_per_worker=1,
                host=LOOPBACK,
                dashboard_address=f"{LOOPBACK}:0",
                security=True,
                memory_limit=0,
                preload=["flows.pipeline.workers"],
                silence_logs=logging.CRITICAL,
            )
            self._stack.enter_context(cluster)
        return self._stack.enter_context(Client(cluster, set_as_default=False))

    def _reached(self) -> Client:
        """Client of a scheduler that was started elsewhere."""
        address = self._settings.scheduler
        assert address is not None
        try:
            socket.create_connection((address.host, address.port), CONNECT_S).close()
            security = Security(require_encryption=address.protocol == "tls")
            if address.protocol == "tls" and security.get_connection_args("client")["ssl_context"] is None:
                raise UserError(
                    self._where, "Dask's config names no certificates", allowed=TLS_SETTINGS, next_step=SECURITY_PAGE
                )
            client = Client(str(address), security=security, timeout=CONNECT_S, set_as_default=False)
        except OSError as error:
            hint = f"start one with: dask scheduler --host {address.host} --port {address.port}; or {HERE}"
            raise UserError(self._where, f"no scheduler answers ({shortened(error)})", next_step=hint) from error
        self._stack.enter_context(client)
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError as error:
            hint = f"start one with: dask worker {address} --nthreads 1; or {HERE}"
            raise UserError(self._where, "the scheduler has no workers", next_step=hint) from error
        return client


class _Lost(Exception):
    """Scheduler or workers are lost; the text is a few words."""


class _Workers:
    """The workers that a scheduler reports."""

    def __init__(self, client: Client, where: str) -> None:
        self._client, self._where = client, where
        self._seen_s = time.monotonic()
        if client.status != "running":
            raise _Lost("the scheduler is gone")
        self.count = max(1, len(client.nthreads()))

    def look(self) -> None:
        """Count the workers. _Lost if there have been none for a while."""
        with suppress(OSError):  # if the scheduler is gone, the batches come back as cancelled
            self.count = len(self._client.nthreads())
        if self.count:
            self._seen_s = time.monotonic()
        elif time.monotonic() - self._seen_s > WITHOUT_WORKERS_S:
            raise _Lost(f"the scheduler has had no worker for {WITHOUT_WORKERS_S:.0f} s")

    def answer(self, future: Future[str]) -> dict[str, Accuracy] | None:
        """Accuracies of a batch by digest; None if its worker died before it was asked for them, and the batch is repeated."""
        try:
            answer = WorkerAnswer.model_validate_json(future.result(timeout=UPDATE_SECONDS))
        except TimeoutError as error:
            if future.status == "error":
                raise UserError(self._where, "files did not answer a worker in time") from error
            return None
        except FutureCancelledError as error:
            raise _Lost("the scheduler is gone") from error
        except KilledWorker as error:
            hint = "memory is the usual reason: predict.features_mib=256, or fewer workers"
            raise _Lost(f"workers died, one after the other, of the same batch ({hint})") from error
        except ImportError as error:
            hint = "scheduler and workers need the run's version of autotailor"
            raise UserError(self._where, f"a worker cannot load the batch ({error})", next_step=hint) from error
        if answer.error:
            raise UserError(self._where, answer.error)
        self._seen_s = time.monotonic()
        return {digest: Accuracy._make(fields) for digest, fields in answer.accuracies.items()}
