"""The deployed flows: their parameters are the form in the Prefect UI, their bodies are the command line's flows.

The types of parameters have the texts of the form (`flows.operations.deployments`); docstrings have the texts that are
a flow's own. The parameters of a flow are the fields of its form: `locals()`, as the first statement reads them.
"""

from typing import Any

from flows.machine import prepare

prepare(quiet=False)  # as on the command line, before torch is imported: the number of threads affects the last bits

from prefect import flow  # noqa: E402

from flows.config import FlowConfig  # noqa: E402
from flows.operations import put  # noqa: E402
from flows.operations.deployments import (  # noqa: E402 (by name: Prefect reads the form off this file's source)
    DEFAULT_DATA,
    DEFAULT_DRIFT,
    NIGHTLY_PRESET,
    NO_PRESET,
    AdaptedDeviceNames,
    AdaptUntil,
    BudgetsMs,
    Data,
    DataPath,
    DeployForm,
    DeploySettings,
    Device,
    DeviceNames,
    Drift,
    NetworkName,
    NightForm,
    OutputDir,
    Overrides,
    PipelineForm,
    Preset,
    RetargetForm,
    RetargetNightForm,
    RetargetSettings,
    RunSettings,
    RunUntil,
    StreamForm,
    SupernetFolder,
    TrainedData,
    named_run,
)
from flows.operations.nightly.night import regressed, work_night  # noqa: E402
from flows.pipeline.stages import PIPELINE, RETARGETING  # noqa: E402
from flows.pipeline.tailoring import tailor  # noqa: E402
from tasks.adaptation.streams import StreamMethod  # noqa: E402
from tasks.deploy import Deployed  # noqa: E402


def _run_name() -> str:
    """The name of a run in the UI."""
    from prefect.runtime import flow_run

    return named_run(flow_run.name or "", flow_run.parameters)


@flow(name="autotailor", flow_run_name=_run_name, persist_result=False)
def run(
    preset: Preset = NO_PRESET,
    model: NetworkName = "",
    data: Data = DEFAULT_DATA,
    data_path: DataPath = "",
    devices: DeviceNames = [],  # noqa: B006 (Prefect shows it in the form)
    budgets_ms: BudgetsMs = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    output_dir: OutputDir = "",
    until: RunUntil = "report",
    settings: RunSettings = None,
) -> dict[str, Any]:
    """The whole pipeline, from a network to files for every device. Empty fields: as the preset says, or the project.

    Args:
        overrides: Further settings as on the command line, one each: finetune.epochs=20, device.remote.agent=URL.
    """
    return tailor(PIPELINE, PipelineForm(**locals()).config(), until)


@flow(name="autotailor-nightly", flow_run_name=_run_name, persist_result=False)
def work_nightly(
    preset: Preset = NIGHTLY_PRESET,
    model: NetworkName = "",
    data: Data = DEFAULT_DATA,
    data_path: DataPath = "",
    devices: DeviceNames = [],  # noqa: B006 (Prefect shows it in the form)
    budgets_ms: BudgetsMs = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    output_dir: OutputDir = "",
    settings: RunSettings = None,
) -> Any:
    """The whole pipeline, compared with the night before in the same output folder. Ends as Regressed if something got worse.

    Args:
        overrides: Further settings as on the command line, one each: nightly.slower=0.1, nightly.webhook_file=PATH.
        output_dir: A folder on the worker's machine, the same every night. Empty: that of the preset, or outputs.
    """
    return _night(NightForm(**locals()).config())


@flow(name="autotailor-retarget", flow_run_name=_run_name, persist_result=False)
def retarget_to(
    supernet: SupernetFolder,
    data: TrainedData = DEFAULT_DATA,
    data_path: DataPath = "",
    devices: AdaptedDeviceNames = [],  # noqa: B006 (Prefect shows it in the form)
    budgets_ms: BudgetsMs = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    output_dir: OutputDir = "",
    until: AdaptUntil = "report",
    settings: RetargetSettings = None,
) -> dict[str, Any]:
    """An existing SuperNet to other devices, without training. Empty fields: as the project says.

    Args:
        overrides: Further settings as on the command line, one each: search.seed=1, device.remote.agent=URL.
    """
    return tailor(RETARGETING, RetargetForm(**locals()).config(), until)


adapt_to = retarget_to
"""Its name for one version more: deployments that 0.17 made call it."""


@flow(name="autotailor-nightly-adapt", flow_run_name=_run_name, persist_result=False)
def adapt_nightly(
    supernet: SupernetFolder,
    data: TrainedData = DEFAULT_DATA,
    data_path: DataPath = "",
    devices: AdaptedDeviceNames = [],  # noqa: B006 (Prefect shows it in the form)
    budgets_ms: BudgetsMs = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    output_dir: OutputDir = "",
    settings: RetargetSettings = None,
) -> Any:
    """An existing SuperNet to its devices, compared with the night before. Ends as Regressed if something got worse.

    Args:
        overrides: Further settings as on the command line, one each: nightly.slower=0.1, nightly.webhook_file=PATH.
        output_dir: A folder on the worker's machine, the same every night, or a URL. Empty: outputs.
    """
    return _night(RetargetNightForm(**locals()).config())


def _night(config: FlowConfig) -> Any:
    result = work_night(config)
    return regressed(result) if result["regressed"] else result


@flow(name="autotailor-stream", flow_run_name=_run_name, persist_result=False)
def stream_to(
    drift: Drift = DEFAULT_DRIFT,
    methods: list[StreamMethod] = [],  # noqa: B006 (Prefect shows it in the form)
    subnets: list[str] = [],  # noqa: B006
    preset: Preset = NO_PRESET,
    model: NetworkName = "",
    data: Data = DEFAULT_DATA,
    data_path: DataPath = "",
    devices: DeviceNames = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    output_dir: OutputDir = "",
    settings: RunSettings = None,
) -> dict[str, Any]:
    """Images that drift to SubNets of a run: their errors over time, under each method. Stages that a run lacks are worked.

    Args:
        drift: How the images drift.
        methods: As they are (source), adapting without labels, or under guards (guarded). Empty: all.
        subnets: original, largest, smallest_budget, NUMBERms, fastest, knee or a digest. Empty: the first three.
        preset: Settings of the run that belong together; the fields below count over them.
        data_path: The folder of imagefolder, parquet, torchvision, coco, voc and masks.
        devices: For which SubNets are searched. Empty: ncnn and onnxruntime on the worker's machine.
        overrides: Further settings as on the command line, one each: drift.severity=3, adaptation.guard.judged_from=8.
        output_dir: The output folder of the run on the worker's machine. Empty: outputs.
    """
    return tailor(PIPELINE, StreamForm(**locals()).config(), "stream")


@flow(name="autotailor-deploy", flow_run_name=_run_name, persist_result=False)
def deploy_to(
    device: Device,
    bundle: str = "",
    overrides: Overrides = [],  # noqa: B006 (Prefect shows it in the form)
    output_dir: OutputDir = "",
    settings: DeploySettings = None,
) -> Deployed:
    """A bundle and the run time onto a device. Empty fields: as the project says.

    Args:
        device: Where the bundle goes: this machine, or a device with ssh.
        bundle: Folder of a bundle on the worker's machine. Empty: that of the latest run for this device.
        overrides: Further settings as on the command line, one each: deploy.port=8081, device.board.ssh.host=board.
        output_dir: The output folder of that run on the worker's machine. Empty: outputs.
    """
    return put(DeployForm(**locals()).config(), device)
