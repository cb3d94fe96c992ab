"""Overrides compose as Hydra does; what it does not accept becomes one line that helps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import conf
from flows.config import RunConfig
from flows.config.compose import FREE_MAPPINGS, compose_config, split_sweep
from flows.config.validate import validate
from tasks.base.errors import UserError


def test_devices_merge_into_a_mapping_of_profiles() -> None:
    config = compose_config("config", ["device=[ncnn,onnxruntime]", "device.ncnn.threads=2"])
    assert list(config["device"]) == ["ncnn", "onnxruntime"]
    assert [profile["threads"] for profile in config["device"].values()] == [2, 1]


def test_one_device_replaces_the_default_ones() -> None:
    assert list(compose_config("config", ["device=[ncnn]"])["device"]) == ["ncnn"]


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("finetune.epoch=3", "option 'finetune.epoch': is unknown; .*did you mean 'finetune.epochs'?"),
        ("finetun.epochs=3", "option 'finetun.epochs': is unknown; .*did you mean 'finetune.epochs'?"),
        ("device=[nccn]", "device: 'nccn' is no option; allowed: .*ncnn, .*onnxruntime.*did you mean 'ncnn'?"),
        ("model=tim", "model: 'tim' is no option; allowed: .*timm.*; did you mean 'timm'?"),
        ("mdel=timm", "option 'mdel': is unknown; .*did you mean 'model'?"),
        ("device.nccn.threads=2", "allowed: ncnn, onnxruntime; did you mean 'device.ncnn.threads'?"),
        ("x.y.z=3", "option 'x.y.z': is unknown; allowed: .*model, .*; see 'autotailor --help'"),
        ("hello", "option 'hello': cannot be read .*; allowed: key=value"),
        ("finetune.epochs=[1", r"option 'finetune.epochs=\[1': cannot be read"),
        ("finetune.epochs=1,2", "has several values; allowed: one value; .*add --multirun"),
        ("hydra.run.dir=x", "option 'hydra.run.dir=x': Hydra's own settings are not options here"),
        ("finetune.epochs=${nowhere}", "option 'finetune.epochs=.*': Interpolation key 'nowhere' not found"),
        ("model=callable", "model.name: has no value; give one: model.name=…"),
        ("preset=quick", r"option 'preset=quick': .*write \+preset=quick"),
        ("+preset=qick", "preset: 'qick' is no option; .*did you mean 'quick'?"),
    ],
)
def test_what_hydra_refuses_is_one_helpful_line(override: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        compose_config("config", [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "+model._target_=os.system",
        "model.options={_target_: os.system}",
        "+device.ncnn.measure={a: [{_target_: x}]}",
        "++finetune={_partial_: true}",
    ],
)
def test_configs_never_name_classes_to_build(override: str) -> None:
    with pytest.raises(UserError, match="configs never name classes to build"):
        compose_config("config", [override])


def test_instantiation_in_a_users_own_config_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "evil.yaml").write_text("evil: {backend: ncnn, measure: {_target_: os.system}}")
    with pytest.raises(UserError, match=r"device\.evil\.measure: has '_target_'"):
        compose_config("config", ["device=[evil]"], tmp_path)


def test_a_users_own_config_folder_adds_options(tmp_path: Path) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "board.yaml").write_text("board: {backend: ncnn, threads: 4}")
    assert compose_config("config", ["device=[board]"], tmp_path)["device"]["board"]["threads"] == 4


def test_free_mappings_take_new_keys_without_a_plus() -> None:
    overrides = ["model.options.drop_rate=0.1", "space.stage2.depth=[-1,0]", "device.ncnn.measure.time_cap_ms=9"]
    config = compose_config("config", overrides)
    assert config["model"]["options"] == {"drop_rate": 0.1}
    assert config["space"] == {"stage2.depth": [-1, 0]}
    assert config["device"]["ncnn"]["measure"] == {"time_cap_ms": 9}


def _empty_mappings(value: Any, place: str) -> Iterator[str]:
    if value == {}:
        yield place
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _empty_mappings(inner, f"{place}.{key}")


def test_every_empty_mapping_of_a_config_file_takes_new_keys() -> None:
    """Hydra refuses new keys of a mapping that a file has, be it empty, without a plus."""
    root = Path(conf.__path__[0])
    files = [file for file in root.glob("*/*.yaml") if file.parent.name not in ("preset", "space")]
    places = [place for file in files for place in _empty_mappings(yaml.safe_load(file.read_text()), file.parent.name)]
    assert {"data.options", "model.constants", "device.onnxruntime.resources"} <= set(places)
    assert [place for place in places if not FREE_MAPPINGS.match(f"{place}=")] == []


def test_multirun_splits_choices_and_ranges_and_keeps_lists() -> None:
    sweep = split_sweep(["a=1,2", "device=[ncnn],[ncnn,onnxruntime]", "b=[1,2]", "+preset=quick"])
    assert sweep == [
        ["a=1", "device=[ncnn]", "b=[1,2]", "+preset=quick"],
        ["a=1", "device=[ncnn,onnxruntime]", "b=[1,2]", "+preset=quick"],
        ["a=2", "device=[ncnn]", "b=[1,2]", "+preset=quick"],
        ["a=2", "device=[ncnn,onnxruntime]", "b=[1,2]", "+preset=quick"],
    ]
    assert split_sweep(["a=range(0,3)"]) == [["a=0"], ["a=1"], ["a=2"]]


def test_multirun_refuses_sweeps_without_fixed_choices() -> None:
    with pytest.raises(UserError, match=r"option 'a=interval\(0,1\)': .*allowed: a,b,c or range"):
        split_sweep(["a=interval(0,1)"])


def test_options_of_the_users_own_folder_are_among_the_allowed(tmp_path: Path) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "board.yaml").write_text("backend: ncnn\n")
    with pytest.raises(UserError, match=r"allowed: .*board.*did you mean 'board'\?"):
        compose_config("config", ["device=[bord]"], tmp_path)


def test_limits_of_memory_count_parameters_in_the_precision_of_each_device() -> None:
    devices = "[ncnn,ncnn_bf16,onnxruntime_int8]"
    config = validate(RunConfig, compose_config("config", [f"device={devices}"]))
    found = {name: config.limited_memory_of(name).parameter_bytes for name in config.device}
    assert found == {"ncnn": 4, "ncnn_bf16": 2, "onnxruntime_int8": 1}
