"""The shipped configs: complete, equal to the defaults in code, and every option valid."""

from typing import Any

import pytest

from flows.compose import compose_config
from flows.config import AdaptConfig, RunConfig
from flows.groups import config_groups
from flows.validate import validate

MANDATORY = {
    "callable": ["model.name=pkg.module:make"],
    "onnx": ["model.path=net.onnx"],
    "imagefolder": ["data.path=photos"],
    "parquet": ["data.path=shards"],
    "remote": ["device.remote.agent=http://board:1", "device.remote.token_env=TOKEN"],
    "server": ["tracking.uri=http://mlflow:5000"],
}
OPTIONS = [(group, option) for group, options in config_groups().items() for option in options]


def _leaves(config: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in config.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}"}
    return found


def test_the_defaults_in_conf_are_the_defaults_in_code() -> None:
    assert validate(RunConfig, compose_config("config", [])) == RunConfig()


def test_the_files_name_every_setting_so_that_each_can_be_overridden() -> None:
    assert _leaves(compose_config("config", [])) == _leaves(RunConfig().model_dump(mode="json"))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_is_valid(group: str, option: str) -> None:
    select = {"device": f"device=[{option}]", "preset": f"+preset={option}"}.get(group, f"{group}={option}")
    config = validate(RunConfig, compose_config("config", [select, *MANDATORY.get(option, [])]))
    if group == "device":
        assert list(config.device) == [option]
    elif group != "preset":
        assert _leaves(compose_config("config", [select, *MANDATORY.get(option, [])])) >= {"output_dir"}


def test_the_example_of_the_contract_is_valid() -> None:
    overrides = ["model=timm", "model.name=resnet26", "device=[ncnn]", "search.budgets_ms=[1,2]", "finetune.epochs=3"]
    config = validate(RunConfig, compose_config("config", [*overrides, "output_dir=runs/a"]))
    assert config.search.budgets_ms == (1.0, 2.0)
    assert config.finetune.epochs == 3
    assert list(config.device) == ["ncnn"]


def test_space_takes_nested_names_and_bare_kinds() -> None:
    overrides = ["space.resolution=[16,32]", "space.depth=auto", "space.stage.1.width_mult=[0.5,1]"]
    space = validate(RunConfig, compose_config("config", overrides)).space
    assert space == {"resolution": (16, 32), "*.depth": "auto", "stage.1.width_mult": (0.5, 1)}


def test_a_device_changes_single_measure_settings() -> None:
    config = validate(RunConfig, compose_config("config", ["device.ncnn.measure.time_cap_ms=99"]))
    assert config.profile_of("ncnn").measure.time_cap_ms == 99
    assert config.profile_of("onnxruntime") == config.profile
    assert config.profile_of("ncnn").measure.warmup_ms == config.profile.measure.warmup_ms


def test_adapt_has_no_training_settings() -> None:
    config = compose_config("adapt", ["supernet=net"])
    assert {"model", "base", "finetune", "space"}.isdisjoint(config)
    assert validate(AdaptConfig, config).data == RunConfig().data
