"""Runs jobs one by one in a child process that is kept from model to model and replaced when it dies."""

from pathlib import Path

from profiling_agents.execution.child import Child, ChildDiedError, memory_reason
from profiling_agents.execution.settings import WorkerSettings
from profiling_agents.messages import (
    AgentError,
    ChildReply,
    ChildRequest,
    JobMessage,
    Measurement,
    MeasureSettings,
    RunRequest,
    RunResult,
    RuntimeInfo,
    Sandbox,
)


class Runner:
    """Runs the models of a device, one at a time. A fault of a model does not touch the models after it."""

    def __init__(self, settings: WorkerSettings, folder: Path) -> None:
        self._child = Child(settings, folder)
        self._memory_mib = settings.limits.memory_mib

    async def start(self) -> tuple[RuntimeInfo, Sandbox]:
        """Start the child; AgentError when the runtime is not installed."""
        return await self._child.start()

    async def close(self) -> None:
        """End the child."""
        await self._child.close()

    async def measure(self, job: JobMessage, settings: MeasureSettings) -> Measurement:
        """Time one model; a failed measurement has its reason."""
        reply, _ = await self._ask(ChildRequest(job=job, settings=settings))
        if reply.timing is None:
            return Measurement.failed(job.key, reply.reason or "the runtime gave no time")
        return Measurement.ok(job.key, reply.timing)

    async def run(self, request: RunRequest, payload: bytes) -> tuple[RunResult, bytes]:
        """Run one model once; a failed result has its reason."""
        reply, outputs = await self._ask(ChildRequest(job=request.job, tensors=request.tensors), payload)
        return RunResult(tensors=reply.tensors, reason=reply.reason), outputs

    async def _ask(self, request: ChildRequest, payload: bytes = b"") -> tuple[ChildReply, bytes]:
        """Ask the child. A job that ran out of memory or crashed in a used child is retried once in a fresh child."""
        if not self._child.alive:
            await self._child.start()
        fresh = self._child.served == 0
        reply, outputs, retry = await self._try(request, payload)
        if retry and not fresh:
            await self._child.close()
            await self._child.start()
            reply, outputs, _ = await self._try(request, payload)
        return reply, outputs

    async def _try(self, request: ChildRequest, payload: bytes) -> tuple[ChildReply, bytes, bool]:
        """(reply, outputs, whether another child may succeed)."""
        try:
            reply, outputs = await self._child.ask(request, payload)
        except ChildDiedError as error:
            return ChildReply(reason=str(error)), b"", error.retry
        except AgentError as error:
            return ChildReply(reason=str(error)), b"", False
        if reply.reason is None:
            return reply, outputs, False
        if reply.out_of_memory:
            reason = memory_reason(self._memory_mib, reply.reason)
        else:
            reason = f"{reply.reason} {self._child.log_line()}".strip()
        return ChildReply(reason=reason), b"", reply.out_of_memory
