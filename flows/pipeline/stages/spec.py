"""A row of the table of stages, the row's view of its run, and the user's data and models as parts of a stage's key.

A row defines a stage's name, how often it is worked, the earlier stages that it needs, its key, and its body: one call
into `tasks`. The key has contents of data and models, or file listings if hashing takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_runtime.base.files import sha256_of
from flows.config import FlowConfig, RetargetConfig, RunConfig
from flows.pipeline.pages import Facts, nothing, plain
from flows.pipeline.run import Output, StageRun, Surroundings
from flows.pipeline.versions import code_version, user_code_version
from flows.storage import SUBNETS_FOLDER
from importing import later_names
from profiling_agents.messages import DEFAULT_ENGINE, Engine
from tasks.base.artifacts import RESULT_FILE, SubNetStore, Workspace, digest_of, key_settings
from tasks.base.own_code import source_of
from tasks.base.progress import Progress
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, ChosenImplementations
from tasks.base.schemas.predictions import ACCURACY_VALIDATION_FILE, SENSITIVITIES_FILE, AccuracyValidation, Uncertainty
from tasks.base.schemas.results import BaseResult, GivenFile
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings
from tasks.data.problems import problem_named
from tasks.data.settings import TEACHER_FILE
from tasks.data.source import listing_of
from tasks.evaluation.models import ModelSettings
from tasks.measuring.runtime_options.settings import RUNTIME_OPTIONS_FILE, ChosenEngine

if TYPE_CHECKING:
    from tasks.measuring.subnets import LeasedDevice
else:
    globals().update(later_names(__file__))


def data_key(settings: DataSettings) -> dict[str, Any]:
    """The data settings that determine the images; files count by relative name, size and modification time."""
    if settings.problem == FIDELITY and settings.own_problem is not None:  # its score is for labelled samples alone
        own = settings.own_problem.model_copy(update={"score": None})
        settings = settings.model_copy(update={"own_problem": own})
    key = key_settings(settings)
    if settings.inputs is not None:
        key["inputs"] = [list(one) for one in settings.inputs.items()]  # order counts, but digests sort mappings
    if settings.tokens is not None and Path(settings.tokens).is_file():
        key["tokens"] = sha256_of(Path(settings.tokens))
    sources = [source_of(name) for name in settings.functions.values()]
    if any(sources):  # opening data without source reports this in one line
        key["source"] = [user_code_version(source) for source in sources if source is not None]
    return {**key, "files": listing_of(settings.path)} if settings.path else key


def labelled_key(settings: DataSettings) -> dict[str, Any]:
    """The labelled samples and their score, by which nothing is trained or chosen; {}: there are none."""
    score = settings.own_problem.score if settings.own_problem is not None and settings.problem == FIDELITY else None
    source = None if score is None else source_of(score)
    found: dict[str, Any] = {} if settings.labelled is None else {"labelled": listing_of(settings.labelled)}
    return found | ({} if score is None else {"score": [score, source and user_code_version(source)]})


def backbone_key(config: RunConfig) -> dict[str, Any]:
    """The parts of a backbone SuperNet's key; empty if the run has no first stage on other data."""
    first = config.pretraining
    if first.backbone is None:
        return {}
    return {
        "backbone": first.backbone,
        "first_data": data_key(first.data),
        "backbone_space": first.space_of(config.space),
    }


def model_key(settings: ModelSettings) -> dict[str, Any]:
    """The model settings, with contents of the ONNX file, the checkpoint, or the callable's source and its imports beside it.

    The name of an ONNX file's network has no effect and is left out.
    """
    key = key_settings(settings)
    if settings.kind == "onnx":
        del key["name"]
    paths = {name: path for name in ("path", "checkpoint") if (path := getattr(settings, name)) is not None}
    files = {name: sha256_of(path) for name, path in paths.items() if path.is_file()}
    source = source_of(settings.name) if settings.kind == "callable" else None
    if source is not None:  # making a network without source reports this in one line
        files["source"] = user_code_version(source)
    return {**key, "files": files}


Outputs = Mapping[str, Mapping[str, Output]]
"""Finished stages: by name, then by label."""

SUPERNET = "supernet"
"""Folder of the SuperNet in stages that make one."""
MEASURES = ("tasks.measuring.subnets", "tasks.evaluation.subnets")
"""The modules that measure SubNets."""
FIDELITY = "fidelity"
"""The problem whose targets are a network's answers (its record loads torch)."""
ALONE = ""
"""Label of a stage that is worked once in a run."""


def trained_supernet(config: FlowConfig, outputs: Outputs) -> Path:
    """The SuperNet of a finished run: the one from the last training, or the given one."""
    return config.supernet if isinstance(config, RetargetConfig) else outputs["finetune"][ALONE].folder / SUPERNET


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How often a stage is worked in one run: once for each label.

    side_by_side: all labels at once, else one after the other. suffix: part of the title after the stage's name and a slash.
    """

    labels: Callable[[FlowConfig], Sequence[str]]
    side_by_side: bool = False
    suffix: Callable[[FlowConfig, str], str] = lambda config, label: label


ONCE = Scope(labels=lambda config: (ALONE,))
DEVICES = Scope(labels=lambda config: tuple(config.device), side_by_side=True)


def _taught(config: FlowConfig, outputs: Outputs) -> FlowConfig:
    """The config with the network whose answers are the targets, once there is one, if data have no targets."""
    if config.data.problem != FIDELITY or config.data.teacher is not None:
        return config
    given = config.supernet if isinstance(config, RetargetConfig) else None
    if given is None and "compile" in outputs:
        given = outputs["compile"][ALONE].folder / SUPERNET
    if given is None or not (given / TEACHER_FILE).is_file():
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"teacher": given / TEACHER_FILE})})


class Context:
    """One stage's view of its run: the config, its device, and the earlier outputs that it names.

    This is a plain class because Prefect inspects dataclasses that are passed to tasks.
    """

    def __init__(
        self,
        run: Surroundings,
        config: FlowConfig,
        spec: StageSpec,
        label: str,
        outputs: Outputs,
        *,
        logs: bool = False,
    ) -> None:
        """outputs: of all stages so far; the stage sees those that it needs or reads.

        logs: whether the stage's numbers are logged to the pipeline run in MLflow.
        """
        self.run, self.config, self.spec = run, _taught(config, outputs), spec
        self.label, self.logs = label, logs
        self._outputs = {name: outputs[name] for name in (*spec.needs, *spec.reads) if name in outputs}

    def of(self, spec: StageSpec) -> Context:
        """The view of another stage that reads nothing beyond the inputs of this one."""
        return Context(self.run, self.config, spec, self.label, self._outputs)

    @property
    def title(self) -> str:
        """Name of the stage in the store, in MLflow and in Prefect."""
        name, suffix = self.spec.title or self.spec.name, self.spec.scope.suffix(self.config, self.label)
        return f"{name}/{suffix}" if suffix else name

    @property
    def device(self) -> str:
        """The device of a stage that is worked once per device."""
        assert self.label in self.config.device, f"stage '{self.spec.name}' is not of a device"
        return self.label

    @property
    def asked_devices(self) -> tuple[str, ...]:
        """The devices that the stage asks; all devices of the run if one label covers several."""
        if not self.spec.agent:
            return ()
        return (self.label,) if self.label in self.config.device else tuple(self.config.device)

    @property
    def batch(self) -> int:
        """Batch size of one run on the device [samples]."""
        return self.config.device[self.device].batch

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the device with its engine: measurements are comparable while it stays equal."""
        return self.fingerprint_of(self.device)

    def fingerprint_of(self, device: str) -> str:
        """The fingerprint of one of several devices, with its engine."""
        return self.run.devices.fingerprint(device, self.engine_of(device))

    @property
    def engine(self) -> Engine:
        """The engine with which the device runs models."""
        return self.engine_of(self.device)

    def engine_of(self, device: str) -> Engine:
        """The engine of one of several devices; the runtime's defaults if the run has no stage "runtime_options"."""
        found = self.has("runtime_options")
        return (
            ChosenEngine.read(self.file("runtime_options", RUNTIME_OPTIONS_FILE, device)).engine
            if found
            else DEFAULT_ENGINE
        )

    @contextmanager
    def leased(self, *, alone: bool = False) -> Iterator[LeasedDevice]:
        """The stage's device with its engine and implementations, exclusive until the block ends."""
        with self.run.devices.exclusive(self.device, self.engine, alone=alone) as client:
            own = ChosenImplementations.read(self.implementations())
            yield LeasedDevice(name=self.device, client=client, batch=self.batch, implementations=own)

    @property
    def training(self) -> RunConfig:
        """The config of a run that trains."""
        assert isinstance(self.config, RunConfig), f"stage '{self.spec.name}' is of the whole pipeline"
        return self.config

    @property
    def data(self) -> dict[str, Any]:
        """The images, as a part of a key."""
        return data_key(self.config.data)

    @property
    def store(self) -> SubNetStore:
        """SubNets measured by stages, in all runs with this output folder."""
        return SubNetStore(self.config.folder / SUBNETS_FOLDER, code_version(*MEASURES), digest_of(self.data))

    def workspace(self, out: Path, progress: Progress) -> Workspace:
        """The stage's folder, its listener, and the store of SubNets."""
        return Workspace(out=out, progress=progress, store=self.store)

    @property
    def supernet(self) -> Path:
        """The SuperNet before fine-tuning, or the given one."""
        return self.config.supernet if isinstance(self.config, RetargetConfig) else self.file("compile", SUPERNET)

    @property
    def trained(self) -> Path:
        """The SuperNet after fine-tuning, or the given one."""
        return self.config.supernet if isinstance(self.config, RetargetConfig) else self.file("finetune", SUPERNET)

    @property
    def is_given(self) -> bool:
        """Whether the network came with weights, and the run did not train it."""
        if not self.has("compile") or not self.training.model.comes_trained:
            return False
        return not self.has("base") or not BaseResult.read(self.file("base", RESULT_FILE)).trained

    @property
    def given_accuracy(self) -> float | None:
        """Validation accuracy of the network as it was given; None: it was not, or this is unknown."""
        kind: type[BaseResult | GivenFile] = BaseResult if self.has("base") else GivenFile
        if not self.is_given or not self.has(kind.STAGE):
            return None
        return kind.read(self.file(kind.STAGE, RESULT_FILE)).validation_accuracy

    def has(self, stage: str) -> bool:
        """Whether this run has a stage that some runs leave out."""
        return stage in self._outputs

    def outputs(self, stage: str) -> Mapping[str, Output]:
        """Outputs of an earlier stage by label."""
        return self._outputs[stage]

    def output(self, stage: str, label: str | None = None) -> Output:
        """The output of an earlier stage for `label` (None: this stage's own), or its only one."""
        outputs = self._outputs[stage]
        wanted = self.label if label is None else label
        return outputs[wanted if wanted in outputs else ALONE]

    def file(self, stage: str, name: str, label: str | None = None) -> Path:
        """A file of an earlier stage."""
        return self.output(stage, label).folder / name

    def sensitivities(self, device: str) -> Path:
        """The accuracy predictor of a device, for fp32 or int8."""
        return self.file("int8" if device in self.config.in_int8 else "sensitivities", SENSITIVITIES_FILE, ALONE)

    def uncertainty(self, device: str) -> Uncertainty:
        """The errors of accuracies in the precision of a device."""
        stated = AccuracyValidation.read(self.sensitivities(device).with_name(ACCURACY_VALIDATION_FILE))
        data = self.config.data
        samples = stated.samples if problem_named(data.problem, data.metric).is_mean else None
        own: dict[str, Any] = {"spread": stated.spread} if stated.spread < 1 else {}
        return Uncertainty(samples=samples, predictor_points=stated.mean_error_points, **own)

    def implementations(self, label: str | None = None) -> Path:
        """The implementations of operators on a device."""
        return self.file("profile", IMPLEMENTATIONS_FILE, label)


Body = Callable[[Context, Path, Progress], StageResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One row of the table.

    The key of a stage consists of its name, `settings`, the content of `inputs`, and the source of `modules` with all their
    imports. Settings that cannot change a result are left out of `settings`, so that changing them repeats nothing.
    """

    name: str
    body: Body
    modules: tuple[str, ...]
    settings: Callable[[Context], dict[str, Any]]
    """The part of the config that counts in the key."""
    inputs: Callable[[Context], tuple[Any, ...]]
    """Digests, and files and folders, which count by content."""
    scope: Scope = ONCE
    needs: tuple[str, ...] = ()
    """Earlier stages that it reads; `retarget` has a given SuperNet instead of "compile" and "finetune"."""
    reads: tuple[str, ...] = ()
    """Earlier stages that it reads if the run has them."""
    ends: str | None = None
    """The command that ends with this stage and shows its result."""
    wanted: Callable[[FlowConfig, str], bool] = lambda config, until: True
    """Whether a run up to `until` has this stage."""
    artifacts: Callable[[Context], tuple[str, ...]] = lambda at: ()
    """Files and folders that are logged to MLflow."""
    registered: Callable[[Context], str | None] = lambda at: None
    """Model registry name for the first artifact."""
    anew: Callable[[Context], bool] = lambda at: False
    """Whether it is worked even if it is complete; its folder is then replaced."""
    agent: bool = False
    """Whether it asks its device; such a stage is retried when the agent is lost or busy."""
    device_s: Callable[[Context], float | None] = lambda at: None
    """Time for which an otherwise idle device is busy with it [s], for a dry run; None: not known in advance."""
    epochs: Callable[[Context], int | None] = lambda at: None
    """Epochs of a training, to scale the duration of an earlier one; also the name of the setting with the epochs."""
    by_device: Callable[[FlowConfig, Mapping[str, Output]], Mapping[str, Output]] = lambda config, outputs: outputs
    """Splits outputs that cover several devices into outputs by device."""
    data: Callable[[FlowConfig], DataSettings] = lambda config: config.data
    """The data that its accuracies refer to."""
    facts: Callable[[StageResult], Facts] = plain
    """Facts on its result for the log and the summary in Prefect; see `flows.pipeline.pages`."""
    details: Callable[[StageResult], Facts] = nothing
    """Further facts for the summary."""
    winners: Callable[[StageResult], list[Facts]] | None = None
    """Rows of a table of winners in Prefect, besides the summary that every stage has."""
    known: str = ""
    """How far the values of these winners are known."""
    title: str = ""
    """Name in the store, if it differs from `name`."""

    def at(self, context: Context) -> StageRun:
        """The stage of one run."""
        return StageRun(
            name=context.title,
            modules=self.modules,
            settings=self.settings(context),
            inputs=self.inputs(context),
            artifacts=self.artifacts(context),
            registered=self.registered(context),
            anew=self.anew(context),
        )


def rows(table: Sequence[StageSpec], config: FlowConfig, until: str) -> list[StageSpec]:
    """The stages of a table that are part of a run up to the last stage of command `until`."""
    last = max(index for index, spec in enumerate(table) if spec.ends == until)
    return [spec for spec in table[: last + 1] if spec.wanted(config, until)]
