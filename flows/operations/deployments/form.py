"""The short form of the deployments: its fields, and the config that Hydra composes of them.

A field is a type that has the text which the form shows. Where the docstring of a flow tells of the field, that text counts.

Prefect checks a form against its schema before it accepts a run. The composed config is validated when the run starts,
before anything is worked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema

from adaptive_runtime.base.errors import without_passwords
from flows.config import AdaptConfig, AdaptStage, DeployConfig, RunConfig, RunStage
from flows.config.compose import compose_config
from flows.config.validate import config_groups, nearest
from flows.operations.deployments.schema import DEVICES, Plain, settings_schema
from tasks.base.errors import UserError

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
    """What a form shows beside a field."""

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
_UNTIL = FieldText('The last stage; "plan" tells how long profiling will take.')
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
AdaptUntil = Annotated[AdaptStage, _UNTIL]
RunSettings = Annotated[Plain | None, _settings(RunConfig), _ALL]
AdaptSettings = Annotated[Plain | None, _settings(AdaptConfig), _ALL]
DeploySettings = Annotated[Plain | None, _settings(DeployConfig), _ALL]


def named_run(given: str, parameters: Mapping[str, Any]) -> str:
    """The name of a flow run: the one that it was given and that was printed when it was asked for, and what its form says."""
    words = [str(parameters.get(field) or "") for field in NAMING]
    shown = " ".join(word for word in words if word not in ("", NO_PRESET, DEFAULT_DATA))
    ending = f": {shown}" if shown else ""
    return given if given.endswith(ending) else f"{given}{ending}"  # a retried run already has the ending


def run_words(preset: str, model: str) -> list[str]:
    """Overrides for a preset and a network: a path that ends in .onnx, `module:function`, or a name of timm."""
    words = [f"+preset={preset}"] if preset != NO_PRESET else []
    if model.endswith(".onnx"):
        return [*words, "model=onnx", f"model.path={quoted(model)}"]
    kind = "callable" if ":" in model else "timm"
    return [*words, f"model={kind}", f"model.name={quoted(model)}"] if model else words


def common_words(
    data: str, data_path: str, devices: Sequence[str], budgets_ms: Sequence[float], output_dir: str
) -> list[str]:
    """Overrides for the fields that both forms have; empty fields leave the values of the preset or the project."""
    words = [f"data={data}"] if data != DEFAULT_DATA else []
    words += [f"data.path={quoted(data_path)}"] if data_path else []
    words += [f"device=[{','.join(devices)}]"] if devices else []
    words += [f"search.budgets_ms=[{','.join(map(repr, budgets_ms))}]"] if budgets_ms else []
    return words + _place(output_dir)


def stream_words(drift: str, methods: Sequence[str], subnets: Sequence[str]) -> list[str]:
    """Overrides for the fields of streams; empty fields leave the values of the project."""
    words = [f"drift={drift}"]
    words += [f"stream.methods=[{','.join(methods)}]"] if methods else []
    return words + ([f"stream.subnets=[{','.join(map(quoted, subnets))}]"] if subnets else [])


def deploy_words(device: str, bundle: str, output_dir: str) -> list[str]:
    """Overrides for the fields of a deployment onto a device."""
    words = [f"deploy.bundle={quoted(bundle)}"] if bundle else []
    return [f"device=[{device}]", *words, *_place(output_dir)]


def _place(output_dir: str) -> list[str]:
    return [f"output_dir={quoted(output_dir)}"] if output_dir else []


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
