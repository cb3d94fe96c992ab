"""The flows that deployments offer: a short form in the Prefect UI, composed by Hydra like a command line.

The form's fields describe a validated config, for a run and for a preview. A field is a type that has the text which
the form shows. If the docstring of a flow describes the field, the docstring's text counts. JSON schemas have every
setting; a run gets only the settings that were entered. Prefect checks a form against its schema before it accepts a
run. The composed config is validated when the run starts, before anything is worked.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema

from adaptive_runtime.base.errors import without_passwords
from flows.config import DeployConfig, DeviceProfile, RetargetConfig, RetargetStage, RunConfig, RunStage
from flows.config.compose import compose_config
from flows.config.validate import config_groups, nearest, validate
from tasks.adaptation.settings import StreamMethod
from tasks.base.errors import UserError

Plain = dict[str, Any]
DEVICES = "devices"
FIRST = ("model", "data", "space", DEVICES)
"""Settings that most runs change; the others follow in the order of the stages."""
ELSEWHERE = ("device", "output_dir", "supernet")
"""Settings that are fields of the short form, or a list instead of a mapping."""
DEVICES_TEXT = "All devices of the run; an entry with the name of an option, or of a device above, starts from that."
NAME = {"title": "name", "type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}


def settings_schema(model: type[BaseModel]) -> Plain:
    """The schema of some settings of a config. A form shows them section by section; sections open on request.

    Defaults are written into descriptions, because a form would send a default like an entered value, which overrides a preset.
    Devices are a list with names, because forms show a mapping as raw JSON.
    """
    schema = model.model_json_schema()
    definitions = schema["$defs"]
    sections = {name: _without_defaults(node, definitions, name) for name, node in schema["properties"].items()}
    device = _without_defaults(definitions[DeviceProfile.__name__], definitions)
    named = {**device, "properties": {"name": NAME, **device["properties"]}, "required": ["name"]}
    sections[DEVICES] = {"title": DEVICES, "description": DEVICES_TEXT, "type": "array", "items": named}
    order = [name for name in (*FIRST, *sections) if name in sections and name not in ELSEWHERE]
    shown = {name: _unopened(sections[name]) for name in order}
    return {"type": "object", "title": "Settings", "properties": shown, "additionalProperties": False}


def _unopened(node: Plain) -> Plain:
    """A part of a form that is shown and sent once it is opened; null until then."""
    described: Plain = {key: node[key] for key in ("title", "description") if key in node}
    return {**described, "anyOf": [node, {"type": "null"}], "default": None}


def _without_defaults(node: Any, definitions: Mapping[str, Any], title: str = "") -> Any:
    """A schema with its references resolved and each default in its description. `title`: its name in a form."""
    if isinstance(node, list):
        return [_without_defaults(inner, definitions) for inner in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = definitions[node["$ref"].rsplit("/", 1)[1]] | {key: node[key] for key in node if key != "$ref"}
    inner = {key: value for key, value in node.items() if key not in ("default", "properties", "title")}
    plain = {key: _without_defaults(value, definitions) for key, value in inner.items()}
    if "properties" in node:
        fields = node["properties"].items()
        plain["properties"] = {name: _without_defaults(field, definitions, name) for name, field in fields}
    default = node.get("default")
    if default is not None and not isinstance(default, dict):
        text = str(default).lower() if isinstance(default, bool) else default
        plain["description"] = f"{plain.get('description', '')} Default: {text}".strip()
    if title:
        plain["title"] = title
    return _unopened(plain) if plain.get("type") == "boolean" else plain  # a form sends an unticked box as false


NO_PRESET = "none"
NIGHTLY_PRESET = "nightly"
DEFAULT_DATA = "default"
NAMING = ("preset", "model", "supernet", "device", "data")
"""Fields whose words stand in the names of flow runs."""
KINDS = ("model", "data")
"""Groups whose options are kinds, with defaults of their own."""
BESIDE_KIND = ("path", "name")
"""Settings that an option of such a group may ask for."""


def _option(group: str, *others: str) -> tuple[Any, ...]:
    """A text that is an option of a group, or another word: for forms and, where a run starts without one, for pydantic."""
    words = [*others, *config_groups()[group]]

    def check(word: Any) -> Any:
        if word not in words:
            raise ValueError(f"got '{word}'; allowed: {', '.join(words)}; {nearest(str(word), words)}".rstrip("; "))
        return word

    return BeforeValidator(check), WithJsonSchema({"type": "string", "enum": words})


@dataclass(frozen=True, slots=True)
class FieldText:
    """The text that a form shows beside a field."""

    text: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Plain:
        """The schema of the type, with the text."""
        return {**handler(core), "description": self.text}


def _settings(model: type[BaseModel]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [settings_schema(model), {"type": "null"}]})


Device = Annotated[str, *_option("device")]
Drift = Annotated[str, *_option("drift")]
DEFAULT_DRIFT = "continual"
Overrides = list[Annotated[str, Field(pattern=r"^(\+{0,2}[^\s=+~][^\s=]*=|~[^\s=]+)")]]

_EMPTY = "Empty: ncnn and onnxruntime on the worker's machine."
_UNTIL = FieldText('The last stage; "plan" says how long profiling will take.')
_ALL = FieldText("Every setting. A value entered here counts over everything above; what is left open changes nothing.")

Preset = Annotated[
    str, *_option("preset", NO_PRESET), FieldText("Settings that belong together; the fields below count over them.")
]
NetworkName = Annotated[
    str, FieldText("A name of timm, a path that ends in .onnx, or module:function. Empty: resnet18.")
]
SupernetFolder = Annotated[str, FieldText("Folder of a trained SuperNet on the worker's machine.")]
Data = Annotated[
    str, *_option("data", DEFAULT_DATA), FieldText("Which images. Default: noisy digits, without files of yours.")
]
TrainedData = Annotated[Data, FieldText("The images that it was trained on. Default: noisy digits.")]
DataPath = Annotated[str, FieldText("The folder of imagefolder, parquet, torchvision, coco, voc, masks and pairs.")]
DeviceNames = Annotated[list[Device], FieldText(f"What the network is tailored to. {_EMPTY}")]
AdaptedDeviceNames = Annotated[list[Device], FieldText(f"What the SuperNet is tailored to. {_EMPTY}")]
BudgetsMs = Annotated[
    list[Annotated[float, Field(gt=0, allow_inf_nan=False)]],
    FieldText("Latencies of one run, in milliseconds. Empty: spread over those of all SubNets."),
]
OutputDir = Annotated[str, FieldText("A folder on the worker's machine, or a URL. Empty: outputs.")]
RunUntil = Annotated[RunStage, _UNTIL]
AdaptUntil = Annotated[RetargetStage, _UNTIL]
RunSettings = Annotated[Plain | None, _settings(RunConfig), _ALL]
RetargetSettings = Annotated[Plain | None, _settings(RetargetConfig), _ALL]
DeploySettings = Annotated[Plain | None, _settings(DeployConfig), _ALL]


def named_run(given: str, parameters: Mapping[str, Any]) -> str:
    """The name of a flow run: the one that it was given and that was printed when it was asked for, and what its form says."""
    words = [str(parameters.get(field) or "") for field in NAMING]
    shown = " ".join(word for word in words if word not in ("", NO_PRESET, DEFAULT_DATA))
    ending = f": {shown}" if shown else ""
    return given if given.endswith(ending) else f"{given}{ending}"  # a retried run already has the ending


WORDS: Mapping[str, Callable[[Any], str]] = {
    "supernet": lambda folder: f"supernet={quoted(folder)}",
    "device": lambda name: f"device=[{name}]",
    "bundle": lambda folder: f"deploy.bundle={quoted(folder)}",
    "data": lambda name: f"data={name}",
    "data_path": lambda folder: f"data.path={quoted(folder)}",
    "devices": lambda names: f"device=[{','.join(names)}]",
    "budgets_ms": lambda budgets_ms: f"search.budgets_ms=[{','.join(map(repr, budgets_ms))}]",
    "output_dir": lambda folder: f"output_dir={quoted(folder)}",
    "drift": lambda name: f"drift={name}",
    "methods": lambda names: f"stream.methods=[{','.join(names)}]",
    "subnets": lambda names: f"stream.subnets=[{','.join(map(quoted, names))}]",
}
"""The override of each field besides the preset and the network."""


def field_words(**fields: Any) -> list[str]:
    """Overrides for the fields of a form. An empty field leaves the value of the preset or the project."""
    model, preset = fields.get("model", ""), fields.get("preset", NO_PRESET)
    words = [f"+preset={preset}"] if preset != NO_PRESET else []
    if model.endswith(".onnx"):
        words += ["model=onnx", f"model.path={quoted(model)}"]
    elif model:
        words += [f"model={'callable' if ':' in model else 'timm'}", f"model.name={quoted(model)}"]
    given = {name: value for name, value in fields.items() if value not in ("", []) or name == "supernet"}
    if given.get("data") == DEFAULT_DATA:
        del given["data"]
    return [*words, *(word(given[name]) for name, word in WORDS.items() if name in given)]


def composed(root: str, fields: Sequence[str], overrides: Sequence[str], settings: Plain | None) -> Plain:
    """The config of a form. Overrides count over fields, and settings over both. UserError as on the command line."""
    entered = _entered(settings or {})
    _refuse_passwords([*fields, *overrides, *map(str, _leaves(entered))])
    devices: list[Plain] = entered.pop(DEVICES, [])
    words: dict[str, str] = {}
    for text in (*fields, *overrides, *_kind_words(entered), *_device_words(devices)):
        key = text.split("=", 1)[0]
        words.pop(key, None)  # the last override wins, even if Hydra accepts a group only once
        words[key] = text
    config = compose_config(root, list(words.values()))
    if devices:
        known = config["device"]
        config["device"] = {one["name"]: merged(known.get(one["name"], {}), _settings_of(one)) for one in devices}
    return merged(config, entered)


def _refuse_passwords(texts: Sequence[str]) -> None:
    """UserError for an address with a password: Prefect stores parameters, and shows them to whoever reaches it."""
    for text in texts:
        if (shown := without_passwords(text)) != text:
            raise UserError(
                f"parameter '{shown}'",
                "has a password, and Prefect stores and shows parameters",
                allowed="addresses without one",
                next_step="put it where the worker finds it: in the file of PGPASSFILE, or in MLFLOW_TRACKING_PASSWORD",
            )


def _leaves(settings: Any) -> Iterator[Any]:
    """The values of nested mappings and lists."""
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    if isinstance(settings, list):
        for inner in settings:
            yield from _leaves(inner)
    else:
        yield settings


def _kind_words(settings: Mapping[str, Any]) -> list[str]:
    """Overrides that choose the option of each kind, so that its own defaults count."""
    words = []
    for group in KINDS:
        section = settings.get(group) or {}
        if "kind" in section:
            words.append(f"{group}={section['kind']}")
            words += [f"{group}.{key}={_hydra(section[key])}" for key in BESIDE_KIND if key in section]
    return words


def _device_words(devices: Sequence[Plain]) -> list[str]:
    """Overrides that choose the options from which devices start, with the values of their fields."""
    options = [one for one in devices if one["name"] in config_groups()["device"]]
    words = [f"device=[{','.join(one['name'] for one in options)}]"] if options else []
    for one in options:
        plain = {key: value for key, value in _settings_of(one).items() if not isinstance(value, Mapping)}
        words += [f"device.{one['name']}.{key}={_hydra(value)}" for key, value in plain.items()]
    return words


def _settings_of(device: Plain) -> Plain:
    return {key: value for key, value in device.items() if key != "name"}


def _entered(settings: Mapping[str, Any]) -> Plain:
    """Settings without those that a form sends as null because nobody opened them, and without empty sections."""
    found: Plain = {}
    for name, value in settings.items():
        inner = _entered(value) if isinstance(value, Mapping) else value
        if isinstance(value, list):
            inner = [_entered(item) if isinstance(item, Mapping) else item for item in value]
        if inner not in (None, {}):
            found[name] = inner
    return found


def merged(config: Plain, changes: Mapping[str, Any]) -> Plain:
    """A config with changes, mapping by mapping."""
    found = dict(config)
    for name, value in changes.items():
        known = found.get(name)
        found[name] = merged(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return found


def quoted(text: str) -> str:
    """A text as Hydra reads it."""
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", text)
    return "'" + re.sub(r"(\\+)$", lambda found: found[1] * 2, escaped) + "'"


def _hydra(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    return quoted(value) if isinstance(value, str) else str(value).lower()


class _Form(BaseModel):
    """Fields that every form has."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    ROOT: ClassVar[str]

    overrides: Overrides = []
    output_dir: OutputDir = ""

    def _composed(self) -> Plain:
        """The config of the form's fields. UserError as on the command line."""
        fields = dict(self)
        return composed(self.ROOT, field_words(**fields), self.overrides, fields["settings"])


class NightForm(_Form):
    """Fields of a night."""

    ROOT = "config"

    preset: Preset = NIGHTLY_PRESET
    model: NetworkName = ""
    data: Data = DEFAULT_DATA
    data_path: DataPath = ""
    devices: DeviceNames = []
    budgets_ms: BudgetsMs = []
    settings: RunSettings = None

    def config(self) -> RunConfig:
        """The validated config. UserError as on the command line."""
        return validate(RunConfig, self._composed())


class PipelineForm(NightForm):
    """Fields of the whole pipeline."""

    preset: Preset = NO_PRESET
    until: RunUntil = "report"


class StreamForm(_Form):
    """Fields of streams."""

    ROOT = "config"

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
        return validate(RunConfig, self._composed())


class RetargetNightForm(_Form):
    """Fields of a night of a given SuperNet."""

    ROOT = "retarget"

    supernet: SupernetFolder
    data: TrainedData = DEFAULT_DATA
    data_path: DataPath = ""
    devices: AdaptedDeviceNames = []
    budgets_ms: BudgetsMs = []
    settings: RetargetSettings = None

    def config(self) -> RetargetConfig:
        """The validated config. UserError as on the command line."""
        return validate(RetargetConfig, self._composed())


class RetargetForm(RetargetNightForm):
    """Fields of an adaptation."""

    until: AdaptUntil = "report"


class DeployForm(_Form):
    """Fields of a deployment onto a device."""

    ROOT = "deploy"

    device: Device
    bundle: str = ""
    settings: DeploySettings = None

    def config(self) -> DeployConfig:
        """The validated config. UserError as on the command line."""
        return validate(DeployConfig, self._composed())


FORMS: Mapping[str, type[NightForm | RetargetNightForm | StreamForm | DeployForm]] = {
    "run": PipelineForm,
    "work_nightly": NightForm,
    "retarget_to": RetargetForm,
    "adapt_nightly": RetargetNightForm,
    "stream_to": StreamForm,
    "deploy_to": DeployForm,
}
"""Forms by the name of their function in `flows.operations.deployments.deployed`."""
