"""Forms of the deployments: what they compose is what the command line composes of the same words."""

import os
import subprocess
import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prefect.flows import Flow
from prefect.utilities.callables import parameter_schema
from pydantic import TypeAdapter, ValidationError

from flows.config import DeployConfig, RetargetConfig, RunConfig
from flows.config.compose import compose_config
from flows.config.validate import config_groups, validate
from flows.operations import deployments
from flows.operations.deployments import settings_schema
from flows.pipeline.tailoring import pipeline, retarget
from tasks.base.errors import UserError
from tasks.data.settings import DataSettings
from tests.support.golden.comparison import UPDATE, check
from tests.support.golden.fixtures import FILES


def of_form(fields: list[str], overrides: list[str] | None = None, settings: Any = None) -> RunConfig:
    """What a form runs."""
    return validate(RunConfig, deployments.composed("config", fields, overrides or [], settings))


def of_words(*words: str) -> RunConfig:
    """What a command line runs."""
    return validate(RunConfig, compose_config("config", words))


def test_an_empty_form_is_the_command_without_options() -> None:
    assert (
        of_form(
            deployments.field_words(
                preset="none", model="", data="default", data_path="", devices=[], budgets_ms=[], output_dir=""
            )
        )
        == of_words()
    )


@pytest.mark.parametrize(
    ("model", "kind"), [("resnet26", "timm"), ("my nets/a 'b'.onnx", "onnx"), ("package.nets:make", "callable")]
)
def test_a_network_is_named_by_one_field(model: str, kind: str) -> None:
    found = of_form(deployments.field_words(preset="none", model=model)).model
    assert found.kind == kind
    assert (str(found.path) if kind == "onnx" else found.name) == model


def test_fields_are_words_of_the_command_line() -> None:
    fields = deployments.field_words(
        preset="quick",
        model="resnet26",
        data="imagefolder",
        data_path="my photos",
        devices=["ncnn"],
        budgets_ms=[1, 2.5],
        output_dir="a b",
    )
    words = ["+preset=quick", "model=timm", "model.name=resnet26", "data=imagefolder", "data.path='my photos'"]
    assert of_form(fields) == of_words(*words, "device=[ncnn]", "search.budgets_ms=[1,2.5]", "output_dir='a b'")


def test_fields_of_a_deployment_onto_a_device_are_words_of_the_command_line() -> None:
    fields = deployments.field_words(device="ncnn", bundle="my nets/bundle", output_dir="a b")
    found = validate(
        DeployConfig, deployments.composed("deploy", fields, ["deploy.port=8081"], {"deploy": {"keep": 3}})
    )
    words = ["device=[ncnn]", "deploy.bundle='my nets/bundle'", "output_dir='a b'", "deploy.port=8081", "deploy.keep=3"]
    assert found == validate(DeployConfig, compose_config("deploy", words))


def test_overrides_count_over_fields_and_settings_over_both() -> None:
    fields = deployments.field_words(data="digits", data_path="", devices=["ncnn"], budgets_ms=[1.0])
    overrides = ["data=glyphs", "finetune.epochs=7", "base.epochs=7", "search.budgets_ms=[2]"]
    found = of_form(fields, overrides, {"finetune": {"epochs": 9}, "search": {"budgets_ms": None}})
    assert (found.data.kind, found.data.resolution) == ("glyphs", 64)
    assert (found.finetune.epochs, found.base.epochs, found.search.budgets_ms) == (9, 7, (2.0,))


def test_what_was_not_entered_leaves_a_preset_as_it_is() -> None:
    unopened = dict.fromkeys(settings_schema(RunConfig)["properties"])
    opened = {**unopened, "finetune": {"epochs": 9, "channels_last": None}, "base": {}}
    expected = of_words("+preset=nightly", "finetune.epochs=9")
    assert of_form(deployments.field_words(preset="nightly", model=""), settings=opened) == expected


@pytest.mark.few("parquet")
@pytest.mark.parametrize("kind", ["imagefolder", "glyphs", "parquet", "digits"])
def test_a_kind_of_data_means_the_same_in_a_form_and_on_the_command_line(kind: str) -> None:
    path = {} if kind in ("glyphs", "digits") else {"path": "a folder"}
    words = [f"data={kind}", *(f"data.path='{value}'" for value in path.values())]
    assert of_form([], settings={"data": {"kind": kind, **path}}) == of_words(*words)
    assert DataSettings.model_validate({"kind": kind, **path}) == of_words(*words).data


def test_devices_are_options_changed_or_of_ones_own() -> None:
    entries = [
        {"name": "ncnn", "threads": 2},
        {"name": "remote", "agent": "http://board:8765", "token_file": "token", "measure": {"time_cap_ms": 9}},
        {"name": "board", "backend": "torch", "token_env": None},
    ]
    found = of_form(["device=[onnxruntime]"], settings={"devices": entries})
    assert list(found.device) == ["ncnn", "remote", "board"]
    remote = of_words("device=[remote]", "device.remote.agent=http://board:8765", "device.remote.token_file=token")
    assert found.device["ncnn"] == of_words("device.ncnn.threads=2").device["ncnn"]
    assert found.device["remote"].model_copy(update={"measure": {}}) == remote.device["remote"]
    assert found.device["remote"].measure == {"time_cap_ms": 9}
    assert found.device["board"].backend == "torch"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["finetune.epoch=3"], "option 'finetune.epoch': is unknown; .*did you mean 'finetune.epochs'?"),
        (["finetune.epochs=0"], "finetune.epochs: got 0; allowed: 1 or more"),
        (["model._target_=os.system"], "configs never name classes to build"),
    ],
)
def test_a_wrong_override_is_the_line_of_the_command_line(overrides: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        of_form([], overrides)


def test_the_schema_has_every_setting_and_fills_in_none() -> None:
    for model in (RunConfig, RetargetConfig, DeployConfig):
        schema = settings_schema(model)
        Draft202012Validator.check_schema(schema)
        elsewhere = {"device", "output_dir", "supernet"}
        assert set(schema["properties"]) == set(model.model_fields) - elsewhere | {"devices"}
        defaults = [value for node in _nodes(schema) for key, value in node.items() if key == "default"]
        assert set(defaults) == {None}
    assert list(settings_schema(RunConfig)["properties"])[:4] == ["model", "data", "space", "devices"]


def test_the_forms_show_what_they_did(pytestconfig: pytest.Config) -> None:
    """Fields in their order, with defaults and texts. What they allow are the options of groups, and all settings."""
    from flows.operations.deployments import deployed

    flows = (
        deployed.run,
        deployed.work_nightly,
        deployed.retarget_to,
        deployed.adapt_nightly,
        deployed.stream_to,
        deployed.deploy_to,
    )
    found = {}
    for flow in flows:
        fields = flow.parameters.properties
        order = sorted(fields, key=lambda name: fields[name]["position"])
        found[flow.name] = {
            name: [fields[name].get("default", "required"), fields[name]["description"]] for name in order
        }
    check(FILES / "deployment_forms.json", found, rtol=0.0, update=bool(pytestconfig.getoption(UPDATE)))


@pytest.mark.parametrize(("flow", "first"), [(pipeline, "model"), (retarget, "supernet")])
def test_the_flows_of_the_command_line_show_what_a_run_begins_with_first_and_commands_as_one_list(
    flow: Flow[..., Any], first: str
) -> None:
    shown = parameter_schema(flow.fn)
    assert shown.properties["until"]["enum"][-1] == "report"
    config = shown.definitions[shown.properties["config"]["$ref"].rsplit("/", 1)[1]]
    assert next(iter(config["properties"])) == first


def _nodes(node: Any) -> list[dict[str, Any]]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [*([node] if isinstance(node, dict) else []), *(found for one in inner for found in _nodes(one))]


@pytest.mark.parametrize(
    ("settings", "valid"),
    [
        ({"finetune": {"epochs": 3}}, True),
        ({"finetune": {"epochs": 0}}, False),
        ({"finetune": {"epoch": 3}}, False),
        ({"data": {"augment": False}, "base": None}, True),
        ({"devices": [{"name": "board", "backend": "ncnn", "threads": 4}]}, True),
        ({"devices": [{"backend": "ncnn"}]}, False),
        ({"devices": [{"name": "board", "backend": "nccn"}]}, False),
    ],
)
def test_the_schema_checks_types_limits_and_names(settings: Any, valid: bool) -> None:
    assert Draft202012Validator(settings_schema(RunConfig)).is_valid(settings) == valid


def test_options_are_those_of_the_groups() -> None:
    shown = TypeAdapter(deployments.Preset).json_schema()["enum"]
    assert shown == ["none", *config_groups()["preset"]]
    with pytest.raises(ValidationError, match=r"got 'nigtly'; allowed: .*did you mean 'nightly'"):
        TypeAdapter(deployments.Preset).validate_python("nigtly")


@pytest.mark.long
def test_a_worker_computes_with_the_threads_of_the_command_line() -> None:
    """Digests depend on the last bits, and these on the number of threads."""
    words = (
        "import os, flows.operations.deployments.deployed, torch; "
        "print(os.environ['OMP_NUM_THREADS'], torch.get_num_threads())"
    )
    bare = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    shown = subprocess.check_output([sys.executable, "-c", words], env=bare, text=True)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert shown.split() == [str(threads)] * 2
