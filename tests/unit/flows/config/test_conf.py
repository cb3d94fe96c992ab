"""The shipped configs: complete, equal to the defaults in code, and every option valid."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.config import RetargetConfig, RunConfig
from flows.config.compose import compose_config, split_sweep
from flows.config.validate import config_groups, validate
from flows.pipeline.stages.spec import model_key
from tasks.base.errors import UserError
from tasks.evaluation.models import ModelSettings, carry_origin, origin_of, remember_origin
from tests.support import long

MANDATORY = {
    "callable": ["model.name=pkg.module:make"],
    "onnx": ["model.path=net.onnx"],
    "imagefolder": ["data.path=photos"],
    "parquet": ["data.path=shards"],
    "torchvision": ["data.path=published"],
    "coco": ["data.path=photos"],
    "voc": ["data.path=photos"],
    "masks": ["data.path=photos"],
    "pairs": ["data.path=photos"],
    "wavfolder": ["data.path=sounds"],
    "series": ["data.path=recordings"],
    "jsonl": ["data.path=texts", "device=[onnxruntime]", "export.formats=[onnx]"],
    "table": ["data.path=days", "data.inputs={photo:image,weather:[celsius,wind]}"],
    "texts": ["device=[onnxruntime]", "export.formats=[onnx]"],
    "tagged_texts": ["device=[onnxruntime]", "export.formats=[onnx]"],
    "tagged_jsonl": ["data.path=texts", "device=[onnxruntime]", "export.formats=[onnx]"],
    "remote": ["device.remote.agent=http://board:1", "device.remote.token_env=TOKEN"],
    "ssh": ["device.ssh.ssh.host=user@board"],
    "android": ["device.android.provider=SERIAL/big"],
    "fleet": ["device.fleet.agents=[http://a:1,http://b:1]", "device.fleet.token_env=TOKEN"],
    "own": ["data.name=data.py:splits", "problem.loss=losses.py:loss", "problem.score=scores.py:score"],
    "unlabelled": ["data.path=photos", "model=onnx", "model.path=net.onnx"],
    "fidelity": ["model=onnx", "model.path=net.onnx"],
    "server": ["tracking.uri=http://mlflow:5000"],
}
OPTIONS = [(group, option) for group, options in config_groups().items() for option in options]


OF_FEW_KINDS = re.compile(
    r"(pretraining\.)?data\.(options|names|shape|window|unroll|network|labelled|tokens|own_problem|teacher)"
)
"""Settings that are in the files of their own kinds of data, that come from `problem`, or that a run sets."""


def _leaves(config: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in config.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}"}
    return found


def test_the_defaults_in_conf_are_the_defaults_in_code() -> None:
    assert validate(RunConfig, compose_config("config", [])) == RunConfig()


def test_the_files_name_every_setting_so_that_each_can_be_overridden() -> None:
    composed, known = _leaves(compose_config("config", [])), _leaves(RunConfig().model_dump(mode="json"))
    assert {name for name in composed if not name.startswith("problem.")} == {
        name for name in known if not OF_FEW_KINDS.fullmatch(name)
    }
    for kind in ("own", "unlabelled"):
        both = ["problem=own"] if kind == "own" else []
        named = _leaves(compose_config("config", [f"data={kind}", *both, *MANDATORY[kind]]))
        assert {"data.options", "data.names", "data.shape"} <= named
    assert "data.window" in named


SEVERAL = ("data", "device", "drift", "networks", "preset")
"""Groups with many options."""


def is_late(group: str, option: str) -> bool:
    """Whether `make test-all` alone composes it: all options of groups with many, the second and later ones of others."""
    return group in SEVERAL or option != config_groups()[group][0]


@pytest.mark.parametrize(("group", "option"), [long(*each) if is_late(*each) else each for each in OPTIONS])
def test_every_option_of_every_group_is_valid(group: str, option: str) -> None:
    select = {"device": f"device=[{option}]", "preset": f"+preset={option}"}.get(group, f"{group}={option}")
    both = ["data=own", "problem=own"] if option == "own" else []  # either needs the other's options
    composed = compose_config("config", [select, *both, *MANDATORY.get(option, [])])
    config = validate(RunConfig, composed)
    if group == "device":
        assert list(config.device) == [option]
    elif group != "preset":
        assert _leaves(composed) >= {"output_dir"}


def test_the_example_of_the_contract_is_valid() -> None:
    overrides = ["model=timm", "model.name=resnet26", "device=[ncnn]", "search.budgets_ms=[1,2]", "finetune.epochs=3"]
    config = validate(RunConfig, compose_config("config", [*overrides, "output_dir=runs/a"]))
    assert config.search.budgets_ms == (1.0, 2.0)
    assert config.finetune.epochs == 3
    assert list(config.device) == ["ncnn"]


def test_the_report_splits_over_all_devices_where_links_alone_are_given() -> None:
    link = "partition.links={ncnn-onnxruntime:{bandwidth_mbps:20,latency_ms:3}}"
    partition = validate(RunConfig, compose_config("config", [link])).partition
    assert partition.devices == ("ncnn", "onnxruntime")
    assert partition.link("onnxruntime", "ncnn", 1.0).latency_ms == 3
    named = validate(RunConfig, compose_config("config", ["partition.devices=[onnxruntime,ncnn]"])).partition
    assert named.devices == ("onnxruntime", "ncnn")
    assert not validate(RunConfig, compose_config("config", [])).partition.asked


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["partition.devices=[ncnn,board]"], "partition.devices: 'board' is no device; allowed: ncnn, onnxruntime"),
        (
            ["partition.devices=[ncnn]"],
            r"devices: got \[ncnn\]; allowed: two to 6 different names, the coordinator first",
        ),
        (["partition.links={ncnn-board:{bandwidth_mbps:1,latency_ms:1}}"], "links.ncnn-board: it joins no two devices"),
        (
            ["partition.devices=[ncnn,onnxruntime]", "partition.parts=parts"],
            "partition.parts: it is written by autotailor partition; allowed: null",
        ),
    ],
)
def test_a_partition_that_a_run_cannot_show_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(RunConfig, compose_config("config", overrides))


def test_space_takes_nested_names_and_bare_kinds() -> None:
    overrides = ["space.resolution=[16,32]", "space.depth=auto", "space.stage.1.width_mult=[0.5,1]"]
    space = validate(RunConfig, compose_config("config", overrides)).space
    assert space == {"resolution": (16, 32), "*.depth": "auto", "stage.1.width_mult": (0.5, 1)}


def test_a_range_is_its_choices_with_both_ends() -> None:
    overrides = [
        "space.resolution={from:128,to:140,step:4}",
        "space.stage.1.depth={from:-2,to:0,step:1}",
        "space.expand_ratio={from:0.1,to:0.4,step:0.1}",
    ]
    space = validate(RunConfig, compose_config("config", overrides)).space
    assert space == {
        "resolution": (128, 132, 136, 140),
        "stage.1.depth": (-2, -1, 0),
        "*.expand_ratio": (0.1, 0.2, 0.3, 0.4),
    }


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("{from:128,to:224}", r"resolution=.*; allowed: \{from: NUMBER, to: NUMBER, step: NUMBER\}"),
        ("{from:128,to:224,step:4,also:1}", r"allowed: \{from: NUMBER, to: NUMBER, step: NUMBER\}"),
        ("{from:128,to:224,step:true}", r"allowed: \{from: NUMBER, to: NUMBER, step: NUMBER\}"),
        ("{from:128,to:224,step:0}", "step above 0"),
        ("{from:224,to:128,step:4}", "to not below from"),
        ("{from:128,to:inf,step:4}", "finite numbers"),
        ("{from:128,to:224,step:5}", "steps of 5 from 128 do not meet 224"),
        ("{from:0,to:224,step:0.001}", "more than 1000 choices"),
    ],
)
def test_a_range_that_is_none_is_refused(bounds: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(RunConfig, compose_config("config", [f"space.resolution={bounds}"]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("exits=stage.9", r"^space: exits=stage\.9; allowed: auto, frozen, or a list \[a,b,…\]"),
        ("exits.head=ligth", r"^space: exits\.head=ligth; allowed: convolution, light"),
    ],
)
def test_a_word_that_is_none_is_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(RunConfig, compose_config("config", [f"space.{override}"]))


def test_selectors_on_the_command_line_may_hold_stars_and_kinds() -> None:
    overrides = [
        "+preset=levit",
        "space.block[FFN].expand_ratio=[3,5]",
        "space.stage.*.depth=auto",
        "+space.*.heads=frozen",
    ]
    space = validate(RunConfig, compose_config("config", overrides)).space
    assert list(space.items())[-3:] == [
        ("block[FFN].expand_ratio", (3, 5)),
        ("stage.*.depth", "auto"),
        ("*.heads", "frozen"),
    ]
    assert space["*.depth"] == tuple(range(-5, 1))


def test_what_the_command_line_says_comes_last_however_it_is_written() -> None:
    overrides = ["+preset=resnet50", "space.*.depth=auto", "space.*.width_mult=[0.5,1]"]
    space = validate(RunConfig, compose_config("config", overrides)).space
    assert list(space) == ["resolution", "*.expand_ratio", "*.depth", "*.width_mult"]
    assert space["*.width_mult"] == (0.5, 1)


def test_selectors_can_be_swept() -> None:
    runs = split_sweep(["space.block[FFN].expand_ratio=[3,5],[4,5]", "space.resolution={from:16,to:32,step:8}"])
    spaces = [validate(RunConfig, compose_config("config", run)).space for run in runs]
    assert [space["block[FFN].expand_ratio"] for space in spaces] == [(3, 5), (4, 5)]
    assert {space["resolution"] for space in spaces} == {(16, 24, 32)}


def test_adapt_has_no_space_to_choose() -> None:
    with pytest.raises(UserError, match=r"option 'space\.depth': is unknown"):
        compose_config("retarget", ["supernet=net", "space.depth=auto"])


def test_a_list_takes_the_place_of_a_presets_range() -> None:
    space = validate(RunConfig, compose_config("config", ["+preset=vit_base", "space.resolution=[112,224]"])).space
    assert space["resolution"] == (112, 224)
    assert space["*.depth"] == tuple(range(-11, 1))


def test_a_device_changes_single_measure_settings() -> None:
    config = validate(RunConfig, compose_config("config", ["device.ncnn.measure.time_cap_ms=99"]))
    assert config.profile_of("ncnn").measure.time_cap_ms == 99
    assert config.profile_of("onnxruntime").measure == config.profile.measure
    assert config.profile_of("ncnn").measure.warmup_ms == config.profile.measure.warmup_ms


def test_a_device_changes_single_settings_of_subnets_in_situ() -> None:
    config = validate(RunConfig, compose_config("config", ["device.ncnn.subnet.layers_ms=400"]))
    found = config.profile_of("ncnn")
    assert found.subnet == config.profile.subnet.model_copy(update={"layers_ms": 400.0})
    assert found.measure == config.profile.measure
    assert config.profile_of("onnxruntime").subnet == config.profile.subnet


def test_look_up_tables_are_in_the_output_folder_unless_a_store_is_named() -> None:
    config = validate(RunConfig, compose_config("config", ["output_dir=runs/a"]))
    assert config.profile_of("ncnn").store == Path("runs/a/luts")
    config = validate(RunConfig, compose_config("config", ["output_dir=runs/a", "profile.store=boards"]))
    assert config.profile_of("ncnn").store == Path("boards")


def test_runs_are_called_by_the_network_and_the_data() -> None:
    select = ["data=torchvision", "data.name=cifar100", "data.path=published"]
    assert validate(RunConfig, compose_config("config", select)).name.endswith("-cifar100")
    onnx = ["model=onnx", "model.path=nets/a b.onnx"]
    assert validate(RunConfig, compose_config("config", onnx)).name == "a b-noisy_digits"
    assert validate(RunConfig, compose_config("config", [*onnx, "model.name=ours"])).name == "ours-noisy_digits"


def test_runs_that_adapt_are_called_by_the_network_of_the_supernet(tmp_path: Path) -> None:
    config = validate(RetargetConfig, compose_config("retarget", [f"supernet={tmp_path / 'net'}"]))
    assert config.name == "net-noisy_digits"
    for folder in (tmp_path / "net", tmp_path / "trained"):
        folder.mkdir()
    remember_origin(ModelSettings(kind="callable", name="own.nets:make"), tmp_path / "net")
    assert config.name == "own.nets-make-noisy_digits"
    carry_origin(tmp_path / "net", tmp_path / "trained")
    assert origin_of(tmp_path / "trained") == origin_of(tmp_path / "net")
    content = json.loads((tmp_path / "net" / "network.json").read_text())
    assert content.pop("version") == 1
    (tmp_path / "net" / "network.json").write_text(json.dumps(content))  # the first files said no version
    assert config.name == "own.nets-make-noisy_digits"
    (tmp_path / "net" / "network.json").write_text("{")
    assert config.name == "net-noisy_digits"


def test_the_name_of_an_onnx_file_repeats_no_stage(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")]
    for file, content in zip(files, (b"1", b"1", b"2"), strict=True):
        file.write_bytes(content)
    same, renamed, other = (model_key(ModelSettings(kind="onnx", path=file)) for file in files)
    assert same == renamed != other


def test_a_preset_gives_no_network_of_its_own_name_to_another() -> None:
    own = ["+preset=quick", "model=onnx", "model.path=net.onnx"]
    assert validate(RunConfig, compose_config("config", own)).model.name == "net"
    assert validate(RunConfig, compose_config("config", ["+preset=quick"])).model.name == "test_resnet"


def test_adapt_has_no_training_settings() -> None:
    config = compose_config("retarget", ["supernet=net"])
    assert {"model", "base", "finetune", "space"}.isdisjoint(config)
    assert validate(RetargetConfig, config).data == RunConfig().data


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["device.ssh.ssh.host='-oProxyCommand=x'"],
            "ssh: got destination '-oProxyCommand=x'; allowed: HOST or USER@HOST",
        ),
        (["device.ssh.ssh.host=a", "+device.ssh.ssh.options.ProxyCommand=x"], "ssh option 'ProxyCommand': not taken"),
        (["device.ssh.ssh.host=a", "device.ssh.token_env=T"], "started for the run makes its own token"),
        (
            ["device.ssh.ssh.host=a", "device.ssh.agent=http://b:1"],
            "got agent and ssh; allowed: one of agent, agents, ssh",
        ),
    ],
)
def test_unsafe_or_contradicting_ssh_devices_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        validate(RunConfig, compose_config("config", ["device=[ssh]", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["device.fleet.agents=[http://a:1,http://b:1]"], "an agent elsewhere needs its token"),
        (["device.fleet.agents=[http://a:1,http://a:1]", "device.fleet.token_env=T"], "one address is there twice"),
        (["device.fleet.agents=[a]", "device.fleet.token_env=T"], "device.fleet.agents.0"),
    ],
)
def test_fleets_without_token_or_with_one_device_twice_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        validate(RunConfig, compose_config("config", ["device=[fleet]", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["device=[remote]", *MANDATORY["remote"], "device.remote.pin_mhz=1800"], "start it with --pin-mhz"),
        (["device=[android]", *MANDATORY["android"], "device.android.pin_mhz=1800"], "the machine beside the phone"),
        (["device.ncnn.pin_mhz=0"], "device.ncnn.pin_mhz"),
    ],
)
def test_frequencies_are_pinned_only_where_the_run_starts_the_agent(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        validate(RunConfig, compose_config("config", overrides))
