"""A device of a run: its runtime, and the way to its agent.

Devices that are one machine in several runtimes or precisions: `export.shared_bundle`. SubNets of a bundle over several
devices: `export.offload`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from adaptive_runtime.base.devices import COORDINATOR, EARLIER_COORDINATOR
from adaptive_runtime.bundle.bundles import BundleFormat
from profiling_agents.client.ssh import SshTarget
from profiling_agents.messages import AgentError, Precision
from tasks.base.earlier import name_now
from tasks.export import Settings as ExportSettings
from tasks.export.bundles import required_files
from tasks.measuring.runtime_options.settings import Choices
from tasks.placement.partition.settings import PartitionSettings

DeviceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
AgentUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+(/devices/[0-9a-f]{32})?/?$")]
"""The address of an agent or a relay; below a fleet's relay, the address of one device."""


CPU = "CPUExecutionProvider"
IN_INT8 = ("onnxruntime", "openvino")
"""Backends that run quantised ONNX files in int8."""


PARAMETER_BYTES: Mapping[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp16_storage": 2, "int8": 1}
"""Bytes of a parameter in a runtime of this precision."""

FORMATS: Mapping[tuple[str, Precision], BundleFormat] = {
    ("onnxruntime", "fp32"): "onnx",
    ("onnxruntime", "int8"): "onnx_int8",
    ("ncnn", "fp32"): "ncnn",
    ("ncnn", "bf16"): "ncnn_bf16",
    ("ncnn", "fp16"): "ncnn_fp16",
    ("ncnn", "fp16_storage"): "ncnn_fp16",
}
"""The format of a bundle in which a backend in a precision runs SubNets."""


class SshSettings(BaseModel):
    """A bare Linux device: the agent is copied there and started over ssh for the time of the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(description="HOST or USER@HOST, also an alias of your ~/.ssh/config")
    port: int | None = Field(default=None, ge=1, le=65535)
    identity: Path | None = Field(default=None, description="private key")
    python: str = Field(default="python3", min_length=1, description="interpreter on the device, e.g. of a venv there")
    options: dict[str, str] = Field(default={}, description="options of ssh, such as UserKnownHostsFile")

    @model_validator(mode="after")
    def _is_a_target(self) -> Self:
        try:
            self.target()
        except AgentError as error:
            raise ValueError(str(error)) from error
        return self

    def target(self) -> SshTarget:
        """The address, and the way to connect."""
        return SshTarget(
            destination=self.host, port=self.port, identity=self.identity, python=self.python, options=self.options
        )


class DeviceProfile(BaseModel):
    """One device: an agent at `agent`, identical ones at `agents`, one that is started over `ssh`, or here.

    An agent that the run starts, here or over ssh, ends with the run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["executorch", "ncnn", "ncnn-adb", "onnxruntime", "openvino", "torch"]
    threads: int = Field(default=1, ge=1, le=256)
    precision: Precision = Field(default="fp32", description="what the runtime stores and computes in")
    cores: tuple[int, ...] | None = Field(
        default=None, description="numbers of the cores to bind to, one for each thread; null: free ones"
    )
    batch: int = Field(default=1, ge=1, le=4096, description="samples of one run")
    provider: str | None = Field(
        default=None, min_length=1, description="what computes: an onnxruntime provider, cpu, cuda; null: the CPU"
    )
    pin_mhz: int | None = Field(
        default=None, ge=1, description="frequency of the cores while the run lasts; takes root there; null: as shipped"
    )
    agent: AgentUrl | None = Field(default=None, description="http(s)://host:port; null: start one here")
    agents: tuple[AgentUrl, ...] = Field(default=(), description="identical devices that share the work of profiling")
    ssh: SshSettings | None = Field(default=None, description="a bare device on which the agent is started")
    token_file: Path | None = None
    token_env: str | None = Field(default=None, min_length=1, description="environment variable with the token")
    ca_file: Path | None = Field(default=None, description="certificate (PEM) that https is checked against")
    runtime_options: Choices = Field(
        default={}, description="option of the runtime -> choice, fixed on this device besides runtime_options.fixed"
    )
    measure: dict[str, float | str] = Field(default={}, description="what differs from profile.measure on this device")
    subnet: dict[str, float | str] = Field(default={}, description="what differs from profile.subnet on this device")
    resources: dict[str, bool | float | tuple[float, ...]] = Field(
        default={}, description="what differs from resources on this device"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_names_of_this_version(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "engine" not in data:
            return data
        now = name_now("option", "option", "device.DEVICE.engine").rpartition(".")[2]
        earlier, given = data["engine"], data.get(now, {})
        whole = (
            {**earlier, **given} if isinstance(earlier, Mapping) and isinstance(given, Mapping) else given or earlier
        )
        return {**{name: value for name, value in data.items() if name != "engine"}, now: whole}

    @model_validator(mode="after")
    def _runs_on_its_backend(self) -> Self:
        if self.batch != 1 and self.backend.startswith("ncnn"):
            raise ValueError(f"batch={self.batch} with backend={self.backend}, which has no batch axis; allowed: 1")
        if self.precision == "int8" and self.backend not in IN_INT8:
            raise ValueError(f"precision=int8 with backend={self.backend}; allowed for int8: {', '.join(IN_INT8)}")
        if self.cores is not None and (len(set(self.cores)) != self.threads or min(self.cores, default=-1) < 0):
            given = ",".join(map(str, self.cores))
            raise ValueError(f"cores=[{given}] with threads={self.threads}; allowed: null, or {self.threads} different")
        return self

    @model_validator(mode="after")
    def _has_one_way_there(self) -> Self:
        ways = [name for name in ("agent", "agents", "ssh") if getattr(self, name)]
        if len(ways) > 1:
            raise ValueError(f"got {' and '.join(ways)}; allowed: one of agent, agents, ssh")
        if len(set(self.agents)) != len(self.agents):
            raise ValueError("agents: one address is there twice")
        tokens = [name for name in ("token_file", "token_env") if getattr(self, name) is not None]
        if self.urls and len(tokens) != 1:
            raise ValueError("an agent elsewhere needs its token: one of token_file=FILE, token_env=NAME")
        if not self.urls and tokens:
            raise ValueError(f"an agent that is started for the run makes its own token; leave {tokens[0]} out")
        if self.pin_mhz is not None and self.backend == "ncnn-adb":
            raise ValueError(f"pin_mhz={self.pin_mhz} would pin the machine beside the phone; allowed: null")
        if self.pin_mhz is not None and self.urls:
            raise ValueError(f"pin_mhz={self.pin_mhz} with an agent that runs already; start it with --pin-mhz")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of agents that run already."""
        return (self.agent,) if self.agent else self.agents

    @property
    def bundle_format(self) -> BundleFormat | None:
        """The format of a bundle that is run so; None: a bundle has none for it."""
        return FORMATS.get((self.backend, self.precision)) if self.provider in (None, CPU) else None

    @property
    def keeps_order(self) -> bool:
        """Whether it runs ONNX files in planned order: `export.planned_memory`."""
        return self.backend == "onnxruntime" and self.precision != "int8" and self.provider in (None, CPU)

    @property
    def is_here(self) -> bool:
        """Whether its agent is started on this machine."""
        return not self.urls and self.ssh is None


FIRST = ("onnx", "ncnn")
"""Formats of a device whose bundle has further ones."""


def check_together(devices: Mapping[str, DeviceProfile], export: ExportSettings) -> None:
    """ValueError in one line: devices that cannot share a bundle."""
    named: set[str] = set()
    for first, others in export.shared_bundle.items():
        where = f"export.shared_bundle.{first}"
        for name in (first, *others):
            if name not in devices:
                raise ValueError(f"{where}: '{name}' is no device; allowed: {', '.join(devices)}")
            if name in named:
                raise ValueError(f"{where}: '{name}' is there twice; allowed: each device once")
            named.add(name)
        profile, profiles = devices[first], {name: devices[name] for name in others}
        if profile.bundle_format not in FIRST:
            got = f"backend={profile.backend} with precision={profile.precision}"
            raise ValueError(f"{where}: {got}; allowed: onnxruntime or ncnn on the CPU in fp32")
        _check_formats(where, {first: profile, **profiles}, export)


def _check_formats(where: str, profiles: Mapping[str, DeviceProfile], export: ExportSettings) -> None:
    owners: dict[str, str] = {}
    for name, profile in profiles.items():
        form = profile.bundle_format
        if form is None:
            got = f"{name} has backend={profile.backend} with precision={profile.precision}"
            raise ValueError(
                f"{where}: {got}, which no format of a bundle is for; allowed: onnxruntime and ncnn on the CPU"
            )
        if form in owners:
            raise ValueError(f"{where}: {owners[form]} and {name} are both in {form}; allowed: each format once")
        if missing := [one for one in required_files([form]) if one not in export.formats]:
            wanted = ",".join((*export.formats, missing[0]))
            raise ValueError(f"{where}: {name} needs files of {missing[0]}; allowed: export.formats=[{wanted}]")
        owners[form] = name
    batches = {name: profile.batch for name, profile in profiles.items()}
    if len(set(batches.values())) > 1:
        got = ", ".join(f"{name} {batch}" for name, batch in batches.items())
        raise ValueError(f"{where}: batches differ ({got}); allowed: one batch for all")


def sharing(export: ExportSettings) -> frozenset[str]:
    """The devices that have no bundle of their own: another one's has their formats."""
    return frozenset(name for others in export.shared_bundle.values() for name in others)


WHERE = "export.offload=true"


def check_placed(devices: Mapping[str, DeviceProfile], export: ExportSettings, partition: PartitionSettings) -> None:
    """ValueError in one line: the first device of a partition cannot have a bundle with SubNets over the others."""
    if not export.offload:
        return
    if not partition.asked:
        raise ValueError(f"{WHERE} without partition.devices; allowed: partition.devices=[COORDINATOR,DEVICE…]")
    coordinator, others = partition.devices[0], partition.devices[1:]
    for name in (COORDINATOR, EARLIER_COORDINATOR):
        if name in others:
            raise ValueError(
                f"partition.devices: a device besides the first is called '{name}'; allowed: any other name"
            )
    if devices[coordinator].bundle_format not in FIRST or coordinator in sharing(export):
        got = f"backend={devices[coordinator].backend} with precision={devices[coordinator].precision}"
        raise ValueError(
            f"{WHERE}: {coordinator} has {got}; allowed: a bundle of onnxruntime or ncnn on the CPU in fp32"
        )
    for name in partition.devices:
        if devices[name].batch != 1:
            raise ValueError(
                f"{WHERE}: {name} has batch={devices[name].batch}; allowed: 1, since samples go one by one"
            )
        if devices[name].precision == "int8":
            raise ValueError(f"{WHERE}: {name} is in int8, which is another accuracy; allowed: fp32, fp16, bf16")
    partition.require_plans()


def leveled(export: ExportSettings, partition: PartitionSettings) -> tuple[str, ...]:
    """The devices whose SubNets, exits, formats and placements are one table, in the stage "front"."""
    placed = partition.devices[:1] if export.offload else ()
    return tuple(dict.fromkeys((*export.shared_bundle, *placed)))
