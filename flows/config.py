"""The validated configuration of a run: the stages' own settings, devices, tracking and the output folder.

As the parameter of a flow it is a form in the Prefect UI.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from profiling_agents.messages import AgentError, MeasureSettings, Precision, one_line
from profiling_agents.ssh import SshTarget
from tasks.base import Settings as BaseSettings
from tasks.baselines.settings import Settings as BaselineSettings
from tasks.compile import Settings as CompileSettings
from tasks.data.settings import DataSettings
from tasks.export import Settings as ExportSettings
from tasks.finetune.settings import Settings as FinetuneSettings
from tasks.models import ModelSettings
from tasks.predict.resources import Settings as ResourceSettings
from tasks.predict.settings import Settings as PredictSettings
from tasks.profile import STORE_FOLDER
from tasks.profile import Settings as ProfileSettings
from tasks.refine.settings import Settings as RefineSettings
from tasks.report.settings import Settings as ReportSettings
from tasks.search.settings import Settings as SearchSettings

KINDS = ("depth", "width_mult", "growth_mult", "expand_ratio", "kernel_size", "heads", "v_scale")
RANGE = ("from", "to", "step")
MOST_CHOICES = 1000

DeviceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


def _selectors(space: Any) -> Any:
    """Nested names joined with dots; a bare kind ("depth") stands for all variables of it ("*.depth").

    {from: 128, to: 224, step: 4} in the place of a list is 128, 132, …, 224.
    """
    if not isinstance(space, Mapping):
        return space
    selectors: dict[str, Any] = {}
    for name, choices in _leaves(space, ""):
        selector = f"*.{name}" if name in KINDS else name
        selectors.pop(selector, None)  # what is said last also comes last
        selectors[selector] = choices
    return selectors


def _leaves(space: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in space.items():
        if not isinstance(value, Mapping):
            yield f"{prefix}{key}", value
        elif any(word in value for word in RANGE):
            yield f"{prefix}{key}", _range(f"{prefix}{key}", value)
        else:
            yield from _leaves(value, f"{prefix}{key}.")


def _range(name: str, bounds: Mapping[Any, Any]) -> tuple[int | float, ...]:
    """Choices in equal steps, both ends included."""
    given = f"{name}={dict(bounds)}"
    if set(bounds) != set(RANGE) or not all(type(bounds[word]) in (int, float) for word in RANGE):
        raise ValueError(f"{given}; allowed: {{from: NUMBER, to: NUMBER, step: NUMBER}}")
    first, last, step = (Decimal(str(bounds[word])) for word in RANGE)
    if not all(number.is_finite() for number in (first, last, step)) or step <= 0 or last < first:
        raise ValueError(f"{given}; allowed: finite numbers, to not below from, step above 0")
    if (last - first) % step:
        raise ValueError(f"{given}: steps of {step} from {first} do not meet {last}; choose a step that does")
    if (last - first) / step >= MOST_CHOICES:
        raise ValueError(f"{given}: more than {MOST_CHOICES} choices; take a larger step")
    choices = [first + index * step for index in range(int((last - first) / step) + 1)]
    return tuple(int(choice) if choice == int(choice) else float(choice) for choice in choices)


Space = Annotated[dict[str, tuple[int | float, ...] | Literal["auto", "frozen"]], BeforeValidator(_selectors)]


AgentUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+/?$")]


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
        """Where and how to connect."""
        return SshTarget(
            destination=self.host,
            port=self.port,
            identity=self.identity,
            python=self.python,
            options=self.options,
        )


class DeviceProfile(BaseModel):
    """One device: an agent at `agent`, identical ones at `agents`, one that is started over `ssh`, or here.

    What is started, here or over ssh, is started for the time of the run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["ncnn", "ncnn-adb", "onnxruntime", "torch"]
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
    measure: dict[str, float | str] = Field(default={}, description="what differs from profile.measure on this device")
    subnet: dict[str, float | str] = Field(default={}, description="what differs from profile.subnet on this device")
    resources: dict[str, bool | float | tuple[float, ...]] = Field(
        default={}, description="what differs from resources on this device"
    )

    @model_validator(mode="after")
    def _ncnn_has_no_batch_axis(self) -> Self:
        if self.batch != 1 and self.backend.startswith("ncnn"):
            raise ValueError(f"batch={self.batch} with backend={self.backend}, which has no batch axis; allowed: 1")
        return self

    @model_validator(mode="after")
    def _a_core_for_each_thread(self) -> Self:
        if self.cores is not None and (len(set(self.cores)) != self.threads or min(self.cores, default=-1) < 0):
            given = ",".join(map(str, self.cores))
            raise ValueError(f"cores=[{given}] with threads={self.threads}; allowed: null, or {self.threads} different")
        return self

    @model_validator(mode="after")
    def _one_way_there(self) -> Self:
        ways = [name for name in ("agent", "agents", "ssh") if getattr(self, name)]
        if len(ways) > 1:
            raise ValueError(f"got {' and '.join(ways)}; allowed: one of agent, agents, ssh")
        if len(set(self.agents)) != len(self.agents):
            raise ValueError("agents: one address is there twice")
        return self

    @model_validator(mode="after")
    def _token_for_a_remote_agent(self) -> Self:
        given = [name for name in ("token_file", "token_env") if getattr(self, name) is not None]
        if self.urls and len(given) != 1:
            raise ValueError("an agent elsewhere needs its token: one of token_file=FILE, token_env=NAME")
        if not self.urls and given:
            raise ValueError(f"an agent that is started for the run makes its own token; leave {given[0]} out")
        return self

    @model_validator(mode="after")
    def _agents_elsewhere_pin_themselves(self) -> Self:
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
    def is_here(self) -> bool:
        """Whether its agent is started on this machine."""
        return not self.urls and self.ssh is None


class TrackingSettings(BaseModel):
    """Where MLflow keeps runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str | None = Field(default=None, min_length=1, description="null: sqlite in the output folder")
    experiment: str = Field(default="autotailor", min_length=1)


LOCAL_DEVICES = {
    "ncnn": DeviceProfile(backend="ncnn"),
    "onnxruntime": DeviceProfile(backend="onnxruntime"),
}


class CommonConfig(BaseModel):
    """What every run has: data, devices, and the settings of the stages from profiling to the report."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: DataSettings = DataSettings()
    device: dict[DeviceName, DeviceProfile] = Field(default=LOCAL_DEVICES, min_length=1)
    profile: ProfileSettings = ProfileSettings()
    predict: PredictSettings = PredictSettings()
    resources: ResourceSettings = ResourceSettings()
    search: SearchSettings = SearchSettings()
    refine: RefineSettings = RefineSettings()
    baselines: BaselineSettings = BaselineSettings()
    export: ExportSettings = ExportSettings()
    report: ReportSettings = ReportSettings()
    tracking: TrackingSettings = TrackingSettings()
    output_dir: Path = Path("outputs")

    @model_validator(mode="after")
    def _what_differs_on_a_device_is_valid(self) -> Self:
        for name in self.device:
            for field, settings_of in (
                ("measure", self._measure_of),
                ("subnet", self._subnet_of),
                ("resources", self.resources_of),
            ):
                try:
                    settings_of(name)
                except ValidationError as error:
                    raise ValueError(f"device.{name}.{field}: {one_line(error)}") from error
        return self

    @model_validator(mode="after")
    def _budgets_and_limits_are_of_devices(self) -> Self:
        search = self.search
        for field, of_devices in (
            ("device_budgets_ms", search.device_budgets_ms or {}),
            ("device_limits", search.device_limits or {}),
        ):
            for name in of_devices:
                if name not in self.device:
                    raise ValueError(f"search.{field}.{name}: no such device; allowed: {', '.join(self.device)}")
        counts = {name: len(search.budgets_of(name) or ()) for name in self.device}
        if search.together and len(set(counts.values())) > 1:
            got = ", ".join(f"{count} for {name}" for name, count in counts.items())
            raise ValueError(
                f"search.together: {got} budgets; allowed: as many for each device, the first belong together, and so on"
            )
        return self

    @model_validator(mode="after")
    def _refinement_is_of_one_device(self) -> Self:
        if self.search.together and self.refine.candidates > 1:
            raise ValueError(
                f"refine.candidates={self.refine.candidates} with search.together: it is of one device; allowed: 1"
            )
        return self

    def resources_of(self, device: str) -> ResourceSettings:
        """What one device and its runtime do with memory and energy."""
        return ResourceSettings.model_validate(self.resources.model_dump() | self.device[device].resources)

    def profile_of(self, device: str) -> ProfileSettings:
        """The profile settings of one device, with what its own profile changes, and the store of the tables."""
        store = self.profile.store or self.output_dir / STORE_FOLDER
        own = {"measure": self._measure_of(device), "subnet": self._subnet_of(device), "store": store}
        return self.profile.model_copy(update=own)

    def _measure_of(self, device: str) -> MeasureSettings:
        return MeasureSettings.model_validate(self.profile.measure.model_dump() | self.device[device].measure)

    def _subnet_of(self, device: str) -> MeasureSettings:
        return MeasureSettings.model_validate(self.profile.subnet.model_dump() | self.device[device].subnet)


class AdaptConfig(CommonConfig):
    """Adapting an existing SuperNet to devices: enumerate, profile, predict, search, export, report."""

    supernet: Path = Field(description="folder of a trained SuperNet")

    @model_validator(mode="after")
    def _nothing_is_trained(self) -> Self:
        if self.baselines.siblings:
            raise ValueError("baselines.siblings with adapt, which trains nothing; allowed: [], or baselines.files")
        return self

    @property
    def name(self) -> str:
        """How runs are called."""
        return f"adapt-{self.data.title}"


class RunConfig(CommonConfig):
    """The whole pipeline, from a network to files for every device."""

    model: ModelSettings = ModelSettings()
    space: Space = Field(
        default={}, description="variable name or pattern -> choices, 'auto' or 'frozen'; empty: propose all"
    )
    compile: CompileSettings = CompileSettings()
    base: BaseSettings = BaseSettings()
    finetune: FinetuneSettings = FinetuneSettings()

    @property
    def name(self) -> str:
        """How runs and registered models are called: the network and its data."""
        return f"{self.model.name.replace('/', '-').replace(':', '-')}-{self.data.title}"
