"""The settings of evaluation on other processes."""

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from profiling_agents.network.endpoint import is_loopback

ALLOWED = "null, a number of processes from 1 to 256, dask://HOST:PORT or dask+tls://HOST:PORT"
MOST_PROCESSES = 256
SCHEDULER = re.compile(r"(dask|dask\+tls)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")


class SchedulerAddress(NamedTuple):
    """Where a Dask scheduler listens. protocol: Dask's."""

    protocol: Literal["tcp", "tls"]
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class EvaluateSettings(BaseModel):
    """Where SubNets are evaluated. No result depends on it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: Annotated[str | None, BeforeValidator(_text)] = Field(
        None,
        description="null: in this process; 4: in so many processes of this machine, at most one for each core; "
        "dask://HOST:PORT or dask+tls://HOST:PORT: by the workers of a Dask scheduler",
    )
    threads: int = Field(1, ge=1, le=256, description="of each worker")
    insecure: bool = Field(
        False,
        description="true: dask:// beyond this machine, where whoever reaches the scheduler or the network can run code here",
    )

    @model_validator(mode="after")
    def _workers_are_known_and_safe(self) -> "EvaluateSettings":
        if self.workers is None or self.processes:
            return self
        found = self.scheduler
        if found is None:
            raise ValueError(f"workers={self.workers}; allowed: {ALLOWED}")
        if found.protocol == "tcp" and not is_loopback(found.host) and not self.insecure:
            raise ValueError(
                f"workers={self.workers}: Dask runs what it is sent, and without TLS it asks nobody for a password; allowed: "
                "dask+tls://, or insecure=true in a network whose every machine you trust"
            )
        return self

    @property
    def processes(self) -> int:
        """Worker processes on this machine; 0: none."""
        count = int(self.workers) if self.workers and re.fullmatch(r"[0-9]{1,3}", self.workers) else 0
        return count if count <= MOST_PROCESSES else 0

    @property
    def scheduler(self) -> SchedulerAddress | None:
        """The scheduler that somebody else has started."""
        found = SCHEDULER.fullmatch(self.workers or "")
        if found is None or not 0 < int(found[3]) < 2**16:
            return None
        return SchedulerAddress("tls" if found[1].endswith("tls") else "tcp", found[2].strip("[]"), int(found[3]))
