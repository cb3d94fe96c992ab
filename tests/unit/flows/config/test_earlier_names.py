"""Names of earlier versions: they work for one version, and one line says the new name; a name that has gone is refused."""

from pathlib import Path

import pytest

from flows.cli.arguments import help_of, parse
from flows.config.compose import compose_config
from flows.config.run import RunConfig
from flows.config.validate import validate
from tasks.base.earlier import EARLIER_NAMES, config_now, name_now, override_now
from tasks.base.errors import UserError
from tasks.data.settings import DataSettings


@pytest.fixture(autouse=True)
def _said_again() -> None:
    name_now.cache_clear()


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        ("export.placed=true", "export.offload=true"),
        ("++export.together={ncnn:[onnxruntime]}", "++export.shared_bundle={ncnn:[onnxruntime]}"),
        ("export.together.ncnn=[onnxruntime]", "export.shared_bundle.ncnn=[onnxruntime]"),
        ("engine.rounds=3", "runtime_options.rounds=3"),
        ("engine.fixed.graph=basic", "runtime_options.fixed.graph=basic"),
        ("engine=default", "runtime_options=default"),
        ("~engine", "~runtime_options"),
        ("policy.epsilon=0.02", "exits.epsilon=0.02"),
        ("policy=default", "exits=default"),
        ("policy=battery", "runtime=battery"),
        ("policy.rules=energy first", "runtime.rules=energy first"),
        ("data=seen_and_felt", "data=image_and_motion"),
        ("+preset=seen_and_felt", "+preset=image_and_motion"),
    ],
)
def test_an_earlier_name_of_an_override_is_the_new_one(
    earlier: str, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert override_now(earlier) == now
    (line,) = capsys.readouterr().err.splitlines()
    assert "is now" in line
    assert "the next version refuses the old name" in line
    override_now(earlier)
    assert not capsys.readouterr().err, "said once"
    assert override_now(now) == now
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["export.bundle=true", "export.placed_more=1", "data=digits", "x", "~export.bundle", "a=b=c"]
)
def test_other_overrides_stay(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert override_now(text) == text
    assert not capsys.readouterr().err


def test_a_run_with_earlier_names_is_composed_as_one_with_the_new_names() -> None:
    earlier = ["+preset=seen_and_felt", "export.placed=true", "export.together={ncnn:[onnxruntime]}"]
    now = ["+preset=image_and_motion", "export.offload=true", "export.shared_bundle={ncnn:[onnxruntime]}"]
    assert compose_config("config", earlier) == compose_config("config", now)


def test_files_of_users_may_have_earlier_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = config_now({"export": {"placed": True, "bundle": True}, "data": {"kind": "digits"}, "name": "x"})
    assert found == {"export": {"offload": True, "bundle": True}, "data": {"kind": "digits"}, "name": "x"}
    assert "export.offload" in capsys.readouterr().err


def _written(folder: Path, file: str, text: str) -> Path:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    return folder


def test_an_earlier_name_in_an_option_file_of_a_user_counts(tmp_path: Path) -> None:
    text = "# @package _global_\nexport:\n  together: {ncnn: [onnxruntime]}\n"
    export = compose_config("config", ["+preset=own"], _written(tmp_path, "preset/own.yaml", text))["export"]
    assert export["shared_bundle"] == {"ncnn": ["onnxruntime"]}
    assert "together" not in export


def test_an_option_of_the_command_line_comes_before_an_earlier_name_in_a_file(tmp_path: Path) -> None:
    own = _written(tmp_path, "export/own.yaml", "defaults: [default]\nplaced: true\nbundle: true\n")
    assert compose_config("config", ["export=own"], own)["export"]["offload"] is True
    assert compose_config("config", ["export=own", "export.offload=false"], own)["export"]["offload"] is False


def test_a_preset_of_a_user_overrides_groups_by_earlier_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "# @package _global_\ndefaults:\n  - override /data: seen_and_felt\n  - override /engine: default\n"
    found = compose_config("config", ["+preset=own"], _written(tmp_path, "preset/own.yaml", text))
    assert found == compose_config("config", ["data=image_and_motion"])
    data, engine = capsys.readouterr().err.splitlines()
    assert "'data=seen_and_felt' is now 'data=image_and_motion'" in data
    assert "'engine' is now 'runtime_options'" in engine


@pytest.mark.parametrize("group", ["engine", "runtime_options"])
def test_a_group_of_a_user_has_its_earlier_name_or_the_new_one(group: str, tmp_path: Path) -> None:
    own = _written(tmp_path, f"{group}/own.yaml", "defaults: [default]\nrounds: 4\n")
    _written(tmp_path, "preset/own.yaml", f"# @package _global_\n{group}:\n  seed: 5\n")
    for chosen in (group, "runtime_options"):
        found = compose_config("config", ["+preset=own", f"{chosen}=own", f"{group}.limit_s=7"], own)["runtime_options"]
        assert (found["rounds"], found["seed"], found["limit_s"], found["random_subnets"]) == (4, 5, 7, 3)


def test_a_policy_of_a_user_is_options_of_exits_and_rules_of_the_run_time(tmp_path: Path) -> None:
    own = _written(tmp_path, "policy/own.yaml", "defaults: [default]\nepsilon: 0.02\nrules: energy first\n")
    _written(tmp_path, "preset/own.yaml", "# @package _global_\npolicy: {pictures: 3, rules: latency first}\n")
    chosen = compose_config("config", ["policy=own"], own)
    assert chosen["exits"] == compose_config("config", ["exits.epsilon=0.02"])["exits"]
    assert chosen["runtime"] == {"rules": "energy first"}
    preset = compose_config("config", ["+preset=own", "policy.subnets=0"], own)
    assert preset == compose_config("config", ["exits.pictures=3", "exits.subnets=0", "runtime.rules=latency first"])


def test_runtime_options_of_a_device_may_have_their_earlier_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = _written(tmp_path, "device/board.yaml", "board:\n  backend: onnxruntime\n  engine: {graph: basic}\n")
    words = ["device=[board,onnxruntime]", "device.onnxruntime.engine.graph=all", "device.board.engine.threads=1"]
    devices = validate(RunConfig, compose_config("config", words, own)).device
    assert devices["board"].runtime_options == {"graph": "basic", "threads": "1"}
    assert devices["onnxruntime"].runtime_options == {"graph": "all"}
    assert "is now 'device.DEVICE.runtime_options'" in capsys.readouterr().err


def test_an_earlier_kind_of_data_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert DataSettings(kind="seen_and_felt").kind == "image_and_motion"
    assert "data.kind 'seen_and_felt' is now 'image_and_motion'" in capsys.readouterr().err


def test_an_earlier_command_is_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["adapt", "supernet=net"]).command == "retarget"
    assert "command 'adapt' is now 'retarget'" in capsys.readouterr().err
    assert help_of(["adapt", "--help"]) == help_of(["retarget", "--help"])


@pytest.mark.parametrize("one", [one for one in EARLIER_NAMES if one.advice], ids=lambda one: one.name)
def test_a_name_that_has_gone_is_refused_with_advice(one: object) -> None:
    name, kind, advice = (getattr(one, field) for field in ("name", "kind", "advice"))
    with pytest.raises(UserError) as refused:
        parse([name]) if kind == "command" else compose_config("config", [f"{name}=1"])
    assert advice in str(refused.value)
    assert "has gone" in str(refused.value)
