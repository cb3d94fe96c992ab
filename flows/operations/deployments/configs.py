"""The fields of each deployed flow, and the validated config that they describe, for a run and for a preview."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from flows.config import AdaptConfig, DeployConfig, RunConfig
from flows.config.validate import validate
from flows.operations.deployments.form import (
    DEFAULT_DATA,
    DEFAULT_DRIFT,
    NIGHTLY_PRESET,
    NO_PRESET,
    AdaptedDeviceNames,
    AdaptSettings,
    AdaptUntil,
    BudgetsMs,
    Data,
    DataPath,
    DeploySettings,
    Device,
    DeviceNames,
    Drift,
    NetworkName,
    OutputDir,
    Overrides,
    Preset,
    RunSettings,
    RunUntil,
    SupernetFolder,
    TrainedData,
    common_words,
    composed,
    deploy_words,
    quoted,
    run_words,
    stream_words,
)
from tasks.adaptation.streams.settings import StreamMethod


class _Fields(BaseModel):
    """Fields that every form has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overrides: Overrides = []
    output_dir: OutputDir = ""


class NightForm(_Fields):
    """Fields of a night."""

    preset: Preset = NIGHTLY_PRESET
    model: NetworkName = ""
    data: Data = DEFAULT_DATA
    data_path: DataPath = ""
    devices: DeviceNames = []
    budgets_ms: BudgetsMs = []
    settings: RunSettings = None

    def config(self) -> RunConfig:
        """The validated config. UserError as on the command line."""
        words = common_words(self.data, self.data_path, self.devices, self.budgets_ms, self.output_dir)
        fields = [*run_words(self.preset, self.model), *words]
        return validate(RunConfig, composed("config", fields, self.overrides, self.settings))


class PipelineForm(NightForm):
    """Fields of the whole pipeline."""

    preset: Preset = NO_PRESET
    until: RunUntil = "report"


class AdaptNightForm(_Fields):
    """Fields of a night of a given SuperNet."""

    supernet: SupernetFolder
    data: TrainedData = DEFAULT_DATA
    data_path: DataPath = ""
    devices: AdaptedDeviceNames = []
    budgets_ms: BudgetsMs = []
    settings: AdaptSettings = None

    def config(self) -> AdaptConfig:
        """The validated config. UserError as on the command line."""
        words = common_words(self.data, self.data_path, self.devices, self.budgets_ms, self.output_dir)
        fields = [f"supernet={quoted(self.supernet)}", *words]
        return validate(AdaptConfig, composed("adapt", fields, self.overrides, self.settings))


class AdaptForm(AdaptNightForm):
    """Fields of an adaptation."""

    until: AdaptUntil = "report"


class StreamForm(_Fields):
    """Fields of streams."""

    drift: Drift = DEFAULT_DRIFT
    methods: list[StreamMethod] = []
    subnets: list[str] = []
    preset: Preset = NO_PRESET
    model: NetworkName = ""
    data: Data = DEFAULT_DATA
    data_path: DataPath = ""
    devices: DeviceNames = []
    settings: RunSettings = None

    def config(self) -> RunConfig:
        """The validated config. UserError as on the command line."""
        fields = [
            *run_words(self.preset, self.model),
            *common_words(self.data, self.data_path, self.devices, [], self.output_dir),
            *stream_words(self.drift, self.methods, self.subnets),
        ]
        return validate(RunConfig, composed("config", fields, self.overrides, self.settings))


class DeployForm(_Fields):
    """Fields of a deployment onto a device."""

    device: Device
    bundle: str = ""
    settings: DeploySettings = None

    def config(self) -> DeployConfig:
        """The validated config. UserError as on the command line."""
        fields = deploy_words(self.device, self.bundle, self.output_dir)
        return validate(DeployConfig, composed("deploy", fields, self.overrides, self.settings))


AnyForm = NightForm | AdaptNightForm | StreamForm | DeployForm
FORMS: Mapping[str, type[AnyForm]] = {
    "run": PipelineForm,
    "work_nightly": NightForm,
    "adapt_to": AdaptForm,
    "adapt_nightly": AdaptNightForm,
    "stream_to": StreamForm,
    "deploy_to": DeployForm,
}
"""Forms by the name of their function in `flows.operations.deployments.deployed`."""
