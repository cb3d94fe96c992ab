"""The validated configuration of a run: the stages' own settings, devices, tracking and the output folder.

As the parameter of a flow it is a form in the Prefect UI.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from flows.config.devices import PARAMETER_BYTES, DeviceName, DeviceProfile, check_placed, check_together, sharing
from flows.config.settings import (
    EvaluateSettings,
    PretrainingConfig,
    SpaceSelectors,
    check_abilities,
    check_pretraining,
)
from flows.storage import RUNS_FOLDER, TABLES_FOLDER, LockAddress, OutputPlace, TrackingUri, is_shared, local_folder
from profiling_agents.messages import MeasureSettings, one_line
from tailor_ir.memory.layouts import Rules
from tasks.adaptation.settings import AdaptationSettings, StreamSettings
from tasks.base.artifacts import digest_of
from tasks.base.own_code import LIVE_NAME, is_live
from tasks.data.settings import DataSettings, DriftSettings
from tasks.evaluation.models.settings import CompileSettings, ModelSettings
from tasks.exits.settings import Settings as ExitSettings
from tasks.export import RuntimeSettings
from tasks.export import Settings as ExportSettings
from tasks.measuring.runtime_options.settings import Settings as RuntimeOptionsSettings
from tasks.measuring.settings import ProfileSettings
from tasks.operations.nightly.records import Settings as NightlySettings
from tasks.placement.partition.settings import PartitionSettings
from tasks.prediction.settings import ResourceSettings
from tasks.prediction.settings import Settings as PredictSettings
from tasks.report.sources import Settings as ReportSettings
from tasks.search.choose import Question
from tasks.search.settings import BaselineSettings, RefineSettings
from tasks.search.settings import Settings as SearchSettings
from tasks.training.finetune.settings import BaseSettings
from tasks.training.finetune.settings import Settings as FinetuneSettings

if TYPE_CHECKING:
    from tasks.evaluation.quantise import Int8


class TrackingSettings(BaseModel):
    """The place of MLflow's runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: TrackingUri | None = Field(
        default=None, repr=False, description="null: that of MLFLOW_TRACKING_URI, or mlflow.db in the working folder"
    )
    experiment: str = Field(default="autotailor", min_length=1)


LOCAL_DEVICES = {"ncnn": DeviceProfile(backend="ncnn"), "onnxruntime": DeviceProfile(backend="onnxruntime")}


class CommonConfig(BaseModel):
    """The config that every run has: data, devices, and the settings of the stages from profiling to the report.

    nightly: how the run of one night is compared with that of the night before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: DataSettings = DataSettings()
    device: dict[DeviceName, DeviceProfile] = Field(default=LOCAL_DEVICES, min_length=1)
    runtime_options: RuntimeOptionsSettings = RuntimeOptionsSettings()
    profile: ProfileSettings = ProfileSettings()
    predict: PredictSettings = PredictSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    resources: ResourceSettings = ResourceSettings()
    search: SearchSettings = SearchSettings()
    refine: RefineSettings = RefineSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    exits: ExitSettings = ExitSettings()
    baselines: BaselineSettings = BaselineSettings()
    export: ExportSettings = ExportSettings()
    partition: PartitionSettings = PartitionSettings()
    nightly: NightlySettings = NightlySettings()
    report: ReportSettings = ReportSettings()
    tracking: TrackingSettings = TrackingSettings()
    minutes: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="time that a run may take: epochs, budgets and candidates follow from it; null: they are as set",
    )
    output_dir: OutputPlace = Path("outputs")
    locks: LockAddress | None = Field(
        default=None,
        repr=False,
        description="null: a run has its output folder alone; postgresql+psycopg://USER@HOST/NAME: by locks in that database, "
        "several workers share it and its runs",
    )

    @model_validator(mode="before")
    @classmethod
    def _the_problem_is_of_the_data(cls, given: Any) -> Any:
        """The section `problem` of a config goes into the data's settings; `auto` is the problem of the kind."""
        if not isinstance(given, Mapping) or "problem" not in given:
            return given
        found, problem = {name: one for name, one in given.items() if name != "problem"}, given["problem"]
        asked = {name: one for name, one in dict(problem).items() if one is not None}
        if asked.get("kind", "auto") == "auto":
            if others := [name for name in asked if name != "kind"]:
                raise ValueError(f"problem.{others[0]} is for problem=own and problem=fidelity, not auto")
            return found
        data = found.get("data", {})
        plain = data.model_dump() if isinstance(data, DataSettings) else dict(data)
        return {**found, "data": {**plain, "own_problem": asked, "metric": asked["kind"]}}

    @model_validator(mode="before")
    @classmethod
    def _links_alone_are_of_all_devices(cls, data: Any) -> Any:
        asked = data.get("partition") if isinstance(data, Mapping) else None
        if isinstance(asked, Mapping) and asked.get("links") and not asked.get("devices"):
            return {**data, "partition": {**asked, "devices": tuple(data.get("device", LOCAL_DEVICES))}}
        return data

    @model_validator(mode="after")
    def _minutes_can_be_planned(self) -> Self:
        several = "locks" if self.locks else "an output_dir at a URL" if is_shared(self.output_dir) else ""
        other = (
            "search.accuracy=measured"
            if self.search.accuracy == "measured"
            else "baselines"
            if self.baselines.wanted
            else ""
        )
        if self.minutes is not None and (several or other):
            why = "whose workers have a clock each" if several else "whose time is not known before"
            raise ValueError(f"minutes={self.minutes:g} with {several or other}, {why}; allowed: minutes=null")
        return self

    @model_validator(mode="after")
    def _the_report_splits_over_devices_of_the_run(self) -> Self:
        for name in self.partition.devices:
            if name not in self.device:
                raise ValueError(f"partition.devices: '{name}' is no device; allowed: {', '.join(self.device)}")
        for field in ("page", "parts", "plans"):
            if self.partition.asked and getattr(self.partition, field) is not None:
                raise ValueError(f"partition.{field}: it is written by autotailor partition; allowed: null")
        return self

    @model_validator(mode="after")
    def _what_differs_on_a_device_is_valid(self) -> Self:
        for name in self.device:
            for field in ("measure", "subnet", "resources"):
                try:
                    if field == "resources":
                        self.resources_of(name)
                    else:
                        self._timing_of(name, field)
                except ValidationError as error:
                    raise ValueError(f"device.{name}.{field}: {one_line(error)}") from error
        return self

    @model_validator(mode="after")
    def _budgets_and_limits_are_of_devices(self) -> Self:
        search = self.search
        for field in ("device_budgets_ms", "device_limits"):
            for name in getattr(search, field) or {}:
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
    def _int8_is_of_all_devices_together(self) -> Self:
        if not self.in_int8:
            return self
        if self.search.together and len(self.in_int8) < len(self.device):
            others = ", ".join(name for name in self.device if name not in self.in_int8)
            raise ValueError(
                f"search.together: {', '.join(self.in_int8)} in int8 and {others} not, which are two accuracies of one "
                "SubNet; allowed: all in int8, or none"
            )
        alone = [name for name in self.in_int8 if name not in sharing(self.export)]
        if self.export.bundle and alone:
            raise ValueError(
                f"export.bundle with {alone[0]} in int8: bundles are of fp32 files; allowed: false, or int8 beside fp32 by "
                "export.shared_bundle"
            )
        return self

    @model_validator(mode="after")
    def _devices_and_data_can_do_it(self) -> Self:
        check_together(self.device, self.export)
        check_placed(self.device, self.export, self.partition)
        if self.export.planned_memory and not any(device.keeps_order for device in self.device.values()):
            got = ", ".join(f"{name} (backend={device.backend})" for name, device in self.device.items())
            raise ValueError(
                f"export.planned_memory=true with device {got}: only onnxruntime on a CPU in fp32 runs files in their "
                "order; allowed: false, or such a device besides"
            )
        check_abilities(self, self.data)
        return self

    @property
    def folder(self) -> Path:
        """The output folder; of one at a URL the local copy, in which a run works."""
        return local_folder(self.output_dir)

    def run_folder(self, until: str) -> Path:
        """The folder of a run up to stage `until`, which all its settings name."""
        return self.folder / RUNS_FOLDER / digest_of(self.plain(), until)

    def plain(self) -> dict[str, Any]:
        """All settings as JSON."""
        return self.model_dump(mode="json")

    def resources_of(self, device: str) -> ResourceSettings:
        """The settings of one device for memory and energy."""
        return ResourceSettings.model_validate(self.resources.model_dump() | self.device[device].resources)

    def limited_memory_of(self, device: str) -> Rules:
        """The rules by which one device counts memory: weights in its precision, planned order if it runs such files."""
        profile = self.device[device]
        return replace(
            self.resources_of(device).rules,
            planned=self.export.planned_memory and profile.keeps_order,
            parameter_bytes=PARAMETER_BYTES[profile.precision],
        )

    def precision_of(self, device: str) -> "Int8 | None":
        """The precision in which SubNets are evaluated for one device; None: torch's."""
        if self.device[device].precision != "int8":
            return None
        from tasks.evaluation.quantise import Int8  # on demand, because it loads torch

        return Int8(self.export.quantise)

    @property
    def in_int8(self) -> tuple[str, ...]:
        """The devices in int8."""
        return tuple(name for name, device in self.device.items() if device.precision == "int8")

    def runtime_options_of(self, device: str) -> RuntimeOptionsSettings:
        """The settings of one device for its runtime, with what its own profile fixes."""
        fixed = {**self.runtime_options.fixed, **self.device[device].runtime_options}
        return self.runtime_options.model_copy(update={"fixed": fixed})

    def profile_of(self, device: str) -> ProfileSettings:
        """The profile settings of one device, with the changes of its own profile, and the store of the tables."""
        store = self.profile.store or self.folder / TABLES_FOLDER
        own = {field: self._timing_of(device, field) for field in ("measure", "subnet")}
        return self.profile.model_copy(update={**own, "store": store})

    def with_budgets(self, budgets_ms: Sequence[float]) -> Self:
        """The same with these latency budgets [ms] for every device."""
        search = self.search.model_copy(update={"budgets_ms": tuple(budgets_ms), "device_budgets_ms": None})
        return self.model_copy(update={"search": search})

    def answering(self, question: Question | None) -> Self:
        """The config whose search a question needs: a rule's budget is the one that is searched."""
        if question and question.rule and question.rule.kind == "budget_ms":
            return self.with_budgets([question.rule.value])
        return self

    def _timing_of(self, device: str, field: str) -> MeasureSettings:
        """The settings `measure` or `subnet` of one device."""
        whole, own = getattr(self.profile, field), getattr(self.device[device], field)
        return MeasureSettings.model_validate(whole.model_dump() | own)


def _name_of_run(network: str, data: DataSettings) -> str:
    called = network.removeprefix(f"{LIVE_NAME}:").rpartition("-")[0] if is_live(network) else network
    return f"{called.replace('/', '-').replace(':', '-')}-{data.title}"


class GivenConfig(BaseModel):
    """The config of an adaptation."""

    supernet: Path = Field(description="folder of a trained SuperNet")


class NetworkConfig(BaseModel):
    """The config of the whole pipeline: network, space, and the settings of the stages up to the SuperNet."""

    model: ModelSettings = ModelSettings()
    space: SpaceSelectors = Field(
        default={}, description="variable name or pattern -> choices, 'auto' or 'frozen'; empty: propose all"
    )
    compile: CompileSettings = CompileSettings()
    pretraining: PretrainingConfig = PretrainingConfig()
    base: BaseSettings = BaseSettings()
    finetune: FinetuneSettings = Field(default=FinetuneSettings(), validate_default=True)

    @field_validator("finetune")
    @classmethod
    def _a_trained_network_is_trained_gently(cls, value: FinetuneSettings, info: ValidationInfo) -> FinetuneSettings:
        """Unless a learning rate is given, or the first stage of two has trained other weights."""
        fields = ("model", "base", "pretraining")
        if value.gentle is not None or not all(name in info.data for name in fields):
            return value
        model, base, first = (info.data[name] for name in fields)
        comes_trained = model.comes_trained or base.epochs == 0
        gentle = comes_trained and first.backbone is None and "learning_rate" not in value.model_fields_set
        return value.model_copy(update={"gentle": gentle})


class RetargetConfig(CommonConfig, GivenConfig):
    """Adapting an existing SuperNet to devices: enumerate, profile, predict, search, export, report.

    Fields of the last base are the first: what a run begins with stands above the rest.
    """

    @model_validator(mode="after")
    def _nothing_is_trained(self) -> Self:
        if self.baselines.siblings:
            raise ValueError("baselines.siblings with retarget, which trains nothing; allowed: [], or baselines.files")
        return self

    @property
    def name(self) -> str:
        """The name of runs: the network that the SuperNet was made of, and its data."""
        from tasks.evaluation.models import origin_of

        return _name_of_run(origin_of(self.supernet).name, self.data)


class StreamConfig(BaseModel):
    """The config of streams that drift, which networks of the pipeline play."""

    drift: DriftSettings = DriftSettings()
    adaptation: AdaptationSettings = AdaptationSettings()
    stream: StreamSettings = StreamSettings()


class RunConfig(StreamConfig, CommonConfig, NetworkConfig):
    """The whole pipeline, from a network to files for every device; the fields as those of `RetargetConfig`."""

    @field_validator("data")
    @classmethod
    def _samples_are_for_the_file(cls, value: DataSettings, info: ValidationInfo) -> DataSettings:
        """Samples without labels get what the .onnx file says: the shape, unless it is given, or the inputs of arrays."""
        model = info.data.get("model")
        if value.kind != "unlabelled" or model is None or model.path is None or not model.path.is_file():
            return value
        if value.path is None or not value.path.exists():
            return value
        from tasks.evaluation.models.files import given_network, sizes_of_file  # on demand: they load onnx and torch

        if value.path.is_file() and value.path.suffix != ".txt":
            return value.model_copy(update={"network": given_network(model)})
        if value.shape is not None:
            return value
        sizes = sizes_of_file(model.path)
        if not sizes or None in sizes:
            got = "x".join("?" if size is None else str(size) for size in sizes)
            raise ValueError(
                f"data.shape: the input of '{model.path}' is {got} for each sample; give data.shape=[C,HEIGHT,WIDTH] or [T]"
            )
        return value.model_copy(update={"shape": sizes})

    @model_validator(mode="after")
    def _nodes_have_a_folder_each(self) -> Self:
        first = self.pretraining
        trainings = {
            "base": self.base, "finetune": self.finetune,
            "pretraining.base": first.base, "pretraining.finetune": first.finetune,
        }  # fmt: skip
        several = next((name for name, one in trainings.items() if one.nodes > 1), None)
        if several and (self.locks or is_shared(self.output_dir)):
            how = "locks" if self.locks else "an output_dir at a URL"
            raise ValueError(
                f"{several}.nodes={trainings[several].nodes} with {how}, by which one worker has the stage and the others "
                "wait; allowed: nodes=1, or an output folder of its own for each node"
            )
        if self.minutes is not None and (several or first.backbone):
            got = f"{several}.nodes={trainings[several].nodes}" if several else f"pretraining.backbone={first.backbone}"
            raise ValueError(
                f"minutes={self.minutes:g} with {got}: only one training on this machine is planned; allowed: null"
            )
        check_pretraining(self.pretraining, self.model, self.data)
        if self.data.problem == "fidelity" and not self.model.comes_trained:
            raise ValueError(
                f"data without labels with model={self.model.name}, which comes without weights; allowed: model=onnx, "
                "model.trained=true (the function gives a trained network), model.checkpoint or model.pretrained=true"
            )
        return self

    @property
    def name(self) -> str:
        """The name of runs and registered models: the network and its data."""
        return _name_of_run(self.model.name, self.data)


FlowConfig = RunConfig | RetargetConfig
"""The config of either flow."""
