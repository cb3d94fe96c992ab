"""The service's handle on its child process, and the runner that gives it jobs one by one.

The handle starts the child, asks within a time limit, kills it, and reports how it died. The child is kept from model
to model and replaced when it dies.
"""

import asyncio
import os
import signal
import site
import sys
from contextlib import suppress
from pathlib import Path

from profiling_agents import frames, messages
from profiling_agents.execution.settings import WorkerSettings
from profiling_agents.startup import TOKEN_VARIABLE, python_path

START_LIMIT_S = 180.0
LOG_NAME = "child.log"
MODELS = "models"
"""The child's folder inside the service's: holds models, and files that the runtime writes."""
LOG_TAIL_BYTES = 2000


class ChildDiedError(Exception):
    """The child is gone; `str(error)` is the reason. `retry`: the model may not be at fault."""

    def __init__(self, reason: str, *, retry: bool) -> None:
        super().__init__(reason)
        self.retry = retry


class Child:
    """One child process. It serves one request at a time."""

    def __init__(self, settings: WorkerSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.served = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> tuple[messages.RuntimeInfo, messages.Sandbox]:
        """Start the process and wait for its runtime and sandbox; AgentError when there is no runtime."""
        self.served = 0
        with (self._folder / LOG_NAME).open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "profiling_agents.execution.worker", self._settings.model_dump_json()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._folder / MODELS,
                env=self._environment(),
            )
        try:
            async with asyncio.timeout(START_LIMIT_S):
                reply, _ = await self._receive()
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            self.kill()
            line = self.log_line()
            raise messages.AgentError(
                f"backend '{self._settings.backend}': its process did not start; {line}"
            ) from error
        if reply.runtime is None:
            raise messages.AgentError(reply.reason or "the runtime did not start")
        return reply.runtime, reply.sandbox

    async def ask(self, request: messages.Message, payload: bytes = b"") -> tuple[messages.ChildReply, bytes]:
        """Send one request and return its reply. ChildDiedError when the child hit a limit or crashed. Cancelling kills it."""
        self.served += 1
        os.truncate(self._folder / LOG_NAME, 0)
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            async with asyncio.timeout(self._settings.limits.wall_s):
                self._process.stdin.write(frames.pack(request.model_dump_json().encode(), payload))
                return await self._receive()
        except TimeoutError as error:
            self.kill()
            limit_s = self._settings.limits.wall_s
            raise ChildDiedError(f"wall-clock limit: not finished after {limit_s:g} s", retry=False) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._death() from error
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End the process, even in the middle of a request."""
        if self.alive:
            assert self._process is not None
            with suppress(ProcessLookupError):  # it has ended, and asyncio has not noticed yet
                # Process.kill would take the exit status of an ended process, and asyncio would miss it
                os.kill(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill and wait for the end."""
        self.kill()
        if self._process is not None:
            await self._process.wait()

    def log_line(self) -> str:
        """The last output of the runtime for this request, on one line."""
        try:
            text = (self._folder / LOG_NAME).read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        return " ".join("".join(char if char.isprintable() else " " for char in text).split())[-200:]

    def _environment(self) -> dict[str, str]:
        """The service's environment without its token; one OpenMP thread for each allowed thread."""
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        environment |= {"PYTHONPATH": python_path(environment), "OMP_NUM_THREADS": str(self._settings.threads)}
        if self._settings.sandbox is not None:
            own = str(self._settings.sandbox.folder)
            environment |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH"), own)
            environment |= dict.fromkeys(("USER", "LOGNAME"), "model")
            environment["PYTHONUSERBASE"] = site.getuserbase()
        return environment

    async def _receive(self) -> tuple[messages.ChildReply, bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        stream = self._process.stdout
        prefix = await stream.readexactly(frames.LENGTHS.size)
        header_bytes, payload_bytes = frames.read_lengths(prefix, self._settings.max_payload_bytes)
        reply = messages.ChildReply.model_validate_json(await stream.readexactly(header_bytes))
        return reply, await stream.readexactly(payload_bytes)

    async def _death(self) -> ChildDiedError:
        """The reason why the process ended by itself: a limit, or a crash."""
        assert self._process is not None
        code = await self._process.wait()
        limits = self._settings.limits
        if code == -signal.SIGXCPU:
            return ChildDiedError(f"CPU limit: not finished after {limits.cpu_s} s of CPU time", retry=False)
        printed = self.log_line()
        if "bad_alloc" in printed or "MemoryError" in printed:
            return ChildDiedError(memory_reason(limits.memory_mib, "bad_alloc"), retry=True)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL:
            how += ", by the system, as it does when memory runs out"
        return ChildDiedError(
            f"the runtime crashed ({how}; memory limit {limits.memory_mib} MiB) {printed}".strip(), retry=True
        )


def memory_reason(limit_mib: int, where: str) -> str:
    """The reason of a failure that hit the memory limit."""
    return f"memory limit: needs more than {limit_mib} MiB ({where})"


class Runner(Child):
    """Runs the models of a device, one at a time. A fault of a model does not touch the models after it."""

    async def measure(self, job: messages.JobMessage, settings: messages.MeasureSettings) -> messages.Measurement:
        """Time one model; a failed measurement has its reason."""
        reply, _ = await self._ask(messages.ChildRequest(job=job, settings=settings))
        if reply.timing is None:
            return messages.Measurement.failed(job.key, reply.reason or "the runtime gave no time")
        return messages.Measurement.ok(job.key, reply.timing)

    async def run(self, request: messages.RunRequest, payload: bytes) -> tuple[messages.RunResult, bytes]:
        """Run one model once; a failed result has its reason."""
        reply, outputs = await self._ask(messages.ChildRequest(job=request.job, tensors=request.tensors), payload)
        return messages.RunResult(tensors=reply.tensors, reason=reply.reason), outputs

    async def _ask(self, request: messages.ChildRequest, payload: bytes = b"") -> tuple[messages.ChildReply, bytes]:
        """Ask the child. A job that ran out of memory or crashed in a used child is retried once in a fresh child."""
        if not self.alive:
            await self.start()
        fresh = self.served == 0
        reply, outputs, retry = await self._try(request, payload)
        if retry and not fresh:
            await self.close()
            await self.start()
            reply, outputs, _ = await self._try(request, payload)
        return reply, outputs

    async def _try(self, request: messages.ChildRequest, payload: bytes) -> tuple[messages.ChildReply, bytes, bool]:
        """(reply, outputs, whether another child may succeed)."""
        try:
            reply, outputs = await self.ask(request, payload)
        except ChildDiedError as error:
            return messages.ChildReply(reason=str(error)), b"", error.retry
        except messages.AgentError as error:
            return messages.ChildReply(reason=str(error)), b"", False
        if reply.reason is None:
            return reply, outputs, False
        if reply.out_of_memory:
            reason = memory_reason(self._settings.limits.memory_mib, reply.reason)
        else:
            reason = f"{reply.reason} {self.log_line()}".strip()
        return messages.ChildReply(reason=reason), b"", reply.out_of_memory
