"""Settings with which the service starts its child process."""

from pathlib import Path

from profiling_agents.backends.base import RuntimeOptions
from profiling_agents.execution.limits import ModelLimits
from profiling_agents.messages import Message
from profiling_agents.sensing.sensors import SYSTEM


class SandboxPlan(Message):
    """The sandbox of the child, as `profiling_agents.sandbox.entering.PlannedSandbox` reads it; `folder`: the child's own."""

    folder: Path
    user: int | None
    readable: tuple[Path, ...] = ()
    accelerator: bool = False


class WorkerSettings(RuntimeOptions):
    """How the service starts its child (one JSON argument). segments: serve loaded segments and time no models."""

    cores: tuple[int, ...]
    limits: ModelLimits
    sandbox: SandboxPlan | None
    max_payload_bytes: int
    sensors_root: Path = SYSTEM
    segments: bool = False
