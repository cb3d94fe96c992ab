"""The command line: help, quick answers to typos, one line and exit code 2 for bad input."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from flows.cli import main
from flows.cli.arguments import parse
from flows.cli.commands import stage_table
from flows.cli.words import COMMANDS, FLAGS
from flows.config.compose import compose_config, split_sweep
from flows.config.validate import config_groups
from tasks.base.earlier import EARLIER_NAMES, EarlierName
from tests.support.docs.documents import ROOT, anchors
from tests.support.hidden_modules import hide
from tests.support.ports import refusing_port


def _line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a refused command prints."""
    assert main(list(words)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("autotailor: ")
    return lines[0].removeprefix("autotailor: ")


def test_help_shows_commands_groups_with_options_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    for group, options in config_groups().items():
        assert f"  {group} " in text
        assert ", ".join(options) in text
    assert "examples:" in text


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("autotailor 0.")


@pytest.mark.parametrize(("score", "label"), [("accuracy", "test_accuracy"), ("mAP@0.5", "test_mAP@0.5")])
def test_what_a_stage_has_found_names_the_score(score: str, label: str) -> None:
    stage = {"stage": "base", "cached": False, "seconds": 1.0, "folder": "there", "result": {"test_accuracy": 0.5}}
    table = stage_table(stage, score)
    names, values = (list(column.cells) for column in table.columns)
    assert (names, values) == ([label, "folder"], ["0.5", "there"])


def test_a_prefect_server_that_does_not_answer_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing_port() as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        assert "does not answer" in _line(capsys, "enumerate")


def test_an_mlflow_server_that_does_not_answer_is_one_line_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with refusing_port() as port:
        line = _line(capsys, "enumerate", f"tracking.uri=http://127.0.0.1:{port}", f"output_dir={tmp_path / 'out'}")
    assert line.startswith("tracking.uri: 'http://127.0.0.1:")


OWN = [name for name in COMMANDS if name not in ("agent", "relay")]
"""Commands whose help is made from the table of words."""


@pytest.mark.parametrize("name", OWN)
def test_the_help_of_a_command_tells_what_it_does_its_flags_its_groups_and_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    shown, command = capsys.readouterr().out, COMMANDS[name]
    assert shown.startswith(f"usage: autotailor {name} ")
    assert " ".join(command.about.split()) in " ".join(shown.split())
    assert command.examples
    for flag, words in FLAGS.items():
        assert (f"\n  {words.form} " in shown) == (flag in command.flags)
    groups = shown.partition("option groups")[2]
    assert {group for group in config_groups() if f"\n  {group} " in groups} == set(command.groups)


@pytest.mark.parametrize("name", ["agent", "relay"])
def test_services_have_help_of_their_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: autotailor {name}")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "example",
    [
        line
        for name in OWN
        if name not in ("lut", "clean", "convert", "deploy", "fleet", "partition", "stress")
        for line in COMMANDS[name].examples
    ],
)
def test_every_example_of_the_help_is_accepted(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.config import RetargetConfig, RunConfig
    from flows.config.validate import validate

    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(example)
    arguments = parse(words)
    root, model = ("retarget", RetargetConfig) if arguments.retargets else ("config", RunConfig)
    sweep = split_sweep(arguments.overrides) if arguments.multirun else [list(arguments.overrides)]
    assert program == "autotailor"
    assert all(validate(model, compose_config(root, overrides)) for overrides in sweep)


@pytest.mark.parametrize("earlier", [one for one in EARLIER_NAMES if one.kind == "command" and one.advice])
def test_a_command_that_has_gone_is_one_line_with_the_page_that_takes_its_place(
    earlier: EarlierName, capsys: pytest.CaptureFixture[str]
) -> None:
    name, page = earlier.name, earlier.advice.split()[0]
    for words in ([name], [name, "FOLDER", "keep=14"], [name, "--help"]):
        assert main(words) == 2
        shown = capsys.readouterr()
        assert shown.err == f"autotailor: command '{name}': has gone; {page} says how it is done without it\n"
        assert not shown.out
    file, _, heading = page.partition("#")
    assert heading in anchors(ROOT / file)
    assert name not in COMMANDS


def test_every_group_is_read_by_the_whole_pipeline_and_more_by_later_commands() -> None:
    groups = {name: set(command.groups) for name, command in COMMANDS.items()}
    assert groups["nightly"] == set(config_groups())
    assert groups["run"] == groups["report"] == groups["nightly"] - {"nightly"}
    for chain in (("compile", "finetune", "predict", "search", "export", "run"), ("enumerate", "profile", "predict")):
        assert all(groups[earlier] < groups[later] for earlier, later in pairwise(chain))


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_has_the_options_of_the_users_own_folder(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "board_in_the_attic.yaml").write_text("board: {backend: ncnn}\n")
    assert main(words) == 0
    assert "board_in_the_attic" not in capsys.readouterr().out
    assert main([*words, "--config-dir", str(tmp_path)]) == 0
    assert "android, board_in_the_attic, executorch, fleet" in capsys.readouterr().out


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["rum"], "command 'rum': is unknown; .*did you mean 'run'?"),
        (["run", "--jsn", "x"], "command line: unrecognized arguments: --jsn"),
        (["run", "--json"], "command line: argument --json: expected one argument"),
        (["run", "--json", "/nowhere/x.json"], "--json: folder '/nowhere' does not exist"),
        (["run", "--config-dir", "/nowhere"], "--config-dir: '/nowhere' is not a folder"),
        (["--help", "--config-dir", "/nowhere"], "--config-dir: '/nowhere' is not a folder"),
        (["serch", "--help"], "command 'serch': is unknown; .*did you mean 'search'?"),
        (["lut", "show", "--multirun"], "--multirun: is not a flag of 'lut'; allowed: with run, tailor, compile, "),
        (
            ["compare", "1ms", "2ms", "--dry-run"],
            "--dry-run: is not a flag of 'compare'; allowed: with run, tailor, nightly, compile, ",
        ),
        (
            ["profile", "profile.remeasure=[slow]"],
            "profile.remeasure.0: got 'slow'; allowed: 'noisy', 'failed' or 'all'",
        ),
        (["run", "finetune.epoch=3"], "did you mean 'finetune.epochs'?"),
        (["run", "finetune.epochs=many"], "finetune.epochs: got 'many'; allowed: an integer"),
        (["run", "finetune.epochs=1.5"], "finetune.epochs: got 1.5; allowed: an integer"),
        (["run", "finetune.epochs=0"], "finetune.epochs: got 0; allowed: 1 or more"),
        (["run", "+finetune.epoch=3"], "option 'finetune.epoch': is unknown; .*did you mean 'epochs'?"),
        (["run", "+modle={a: 1}"], "option 'modle': is unknown; .*did you mean 'model'?"),
        (["run", "search.budgets_ms=[-1]"], "search.budgets_ms.0: got -1; allowed: greater than 0"),
        (["run", "search.budgets_ms=[]"], r"search.budgets_ms: got \[\]; allowed: 1 or more entries"),
        (["run", "search.budgets_ms=[1,fast]"], "search.budgets_ms.1: got 'fast'; allowed: a number"),
        (["run", "search.budgets_ms=[nan]"], "search.budgets_ms.0: got nan; allowed: "),
        (["run", "search.limits.energy_mj=0"], "search.limits.energy_mj: got 0; allowed: greater than 0"),
        (["run", "search=exact", "search.accuracy=measured"], "is for search=genetic, not for exact"),
        (["run", "search.limits.energy=2"], "did you mean 'search.limits.energy_mj'?"),
        (
            ["run", "search.device_budgets_ms={pi:[1]}"],
            "search.device_budgets_ms.pi: no such device; allowed: ncnn, onnxruntime",
        ),
        (
            ["run", "search.device_limits={pi:{macs:1e6}}"],
            "search.device_limits.pi: no such device; allowed: ncnn, onnxruntime",
        ),
        (
            ["search", "search.placement=[ncnn,onnxruntime]"],
            "option 'search.placement': has gone; a bundle .* export.bundle=true export.offload=true partition.devices=",
        ),
        (["run", "+search.placement=[ncnn,onnxruntime]"], "option 'search.placement': has gone; a bundle with SubNets"),
        (
            ["run", "search.partition.links={ncnn-pi:{bandwidth_mbps:1,latency_ms:1}}"],
            "option 'search.partition.links': has gone; links and limits .* are options of partition",
        ),
        (
            ["run", "search.together=true", "search.device_budgets_ms={ncnn:[1,2],onnxruntime:[1]}"],
            "search.together: 2 for ncnn, 1 for onnxruntime budgets; allowed: as many for each device",
        ),
        (
            ["run", "export.planned_memory=true", "export.formats=[ncnn]"],
            r"planned_memory=true with formats=\[ncnn\]: ONNX files alone have an order .*; allowed: onnx among",
        ),
        (
            ["run", "export.planned_memory=true", "device=[ncnn]"],
            r"export.planned_memory=true with device ncnn \(backend=ncnn\): only onnxruntime on a CPU in fp32",
        ),
        (["run", "baselines.siblings=[resnet62]"], "timm has no network 'resnet62'; allowed: for example .*resnet26"),
        (["run", "baselines.siblings=[{name:resnet18,width:1}]"], "option 'baselines.siblings.0.width': is unknown"),
        (["run", "baselines.files={pruning:[a.onnx]}"], "pruning: 'a.onnx' does not exist; allowed: .onnx files"),
        (["run", "baselines.random=-1"], "baselines.random: got -1; allowed: 0 or more"),
        (
            ["retarget", "supernet=net", "baselines.siblings=[resnet10t]"],
            r"baselines.siblings with retarget, which trains nothing; allowed: \[\], or baselines.files",
        ),
        (["run", "device.ncnn.threads=0"], "device.ncnn.threads: got 0; allowed: 1 or more"),
        (
            ["run", "device.ncnn.backend=tflite"],
            "device.ncnn.backend: got 'tflite'; allowed: 'executorch', 'ncnn', 'ncnn-adb', 'onnxruntime', 'openvino' or",
        ),
        (["run", "device.ncnn.measure.time_cap=3"], "device.ncnn.measure: time_cap: "),
        (["run", "device.ncnn.subnet.layers=3"], "device.ncnn.subnet: layers: "),
        (["run", "device.ncnn.subnet.layers_ms=-3"], "device.ncnn.subnet: layers_ms: "),
        (
            ["run", "device.ncnn.subnet.cache=cold"],
            "device.ncnn.subnet: .*layers are timed with warm ones; allowed: 0, or",
        ),
        (["run", "device.ncnn.agent=http://board:1"], "an agent elsewhere needs its token"),
        (["run", "device.ncnn.agent=board"], "device.ncnn.agent: got 'board'; allowed: "),
        (["run", "device.ncnn.token_env=X"], "makes its own token; leave token_env out"),
        (["run", "device=[]"], "device: got {}; allowed: 1 or more entries"),
        (["run", "space.depth=[a]"], r"space.\*.depth"),
        (["run", "data=imagefolder"], "data.path: has no value"),
        (["run", "model=onnx"], "model.path: has no value"),
        (["run", "finetune.batch_size=50", "finetune.micro_batch=32"], "does not split evenly"),
        (["run", "finetune.average=1"], "finetune.average: got 1; allowed: less than 1"),
        (["run", "finetune.precision=float16"], "finetune.precision: got 'float16'; allowed: 'float32', 'float64' or"),
        (["run", "finetune.learning_rate=inf"], "finetune.learning_rate: got inf; allowed: a finite number"),
        (["run", "finetune.restarts=-1"], "finetune.restarts: got -1; allowed: 0 or more"),
        (["run", "finetune.nodes=2", "finetune.batch_size=128"], "finetune: nodes=2, rendezvous=None; allowed: "),
        (
            ["run", "finetune.nodes=2", "finetune.batch_size=128", "finetune.rendezvous=10.0.0.5:29400"],
            "finetune: rendezvous=10.0.0.5:29400: ranks ask nobody for a password",
        ),
        *(
            (
                ["run", "finetune.nodes=2", "finetune.batch_size=128", "finetune.rendezvous=127.0.0.1:29400", shared],
                f"finetune.nodes=2 with {how}, by which one worker has the stage",
            )
            for shared, how in (
                ("locks='postgresql+psycopg://me@db/locks'", "locks"),
                ("output_dir=s3://bucket/a", "an output_dir at a URL"),
            )
        ),
        (["run", "profile.store=s3://bucket/luts"], "profile.store: got an address; allowed: a folder of this machine"),
        (["run", "finetune=random", "finetune.divergence=alpha"], "finetune: divergence=alpha without a teacher: "),
        (["run", "finetune.mixing.mixup_alpha=-1"], "finetune.mixing.mixup_alpha: got -1; allowed: 0 or more"),
        (["run", "finetune.mixing.mixup=1"], "did you mean 'finetune.mixing.mixup_alpha'?"),
        (["run", "base.mixing.probability=2"], "base.mixing.probability: got 2; allowed: 1 or less"),
        (["run", "+model._target_=os.system"], "configs never name classes to build"),
        (["search", "--budget-ms", "-1"], "--budget-ms: got '-1'; allowed: a number above 0"),
        (["search", "--budget-ms", "nan"], "--budget-ms: got 'nan'; allowed: a number above 0"),
        (["search", "--budget-ms", "fast"], "--budget-ms: got 'fast'; allowed: a number above 0"),
        (["search", "--budget-ms", "1", "search.budgets_ms=[2]"], "--budget-ms: is given beside search.budgets_ms"),
        (
            ["search", "--budget-ms", "1", "search.device_budgets_ms={ncnn:[2]}"],
            "--budget-ms: is given beside search.device_budgets_ms",
        ),
        (["search", "--budget-ms", "1", "--knee"], "--budget-ms and --knee: choose one SubNet each; leave all but one"),
        (["search", "--accuracy-share", "95"], "--accuracy-share: got '95'; allowed: a number above 0 and up to 1"),
        (["search", "--accuracy-share", "0"], "--accuracy-share: got '0'; allowed: "),
        (["run", "--knee"], "--knee: is not a flag of 'run'; allowed: with search"),
        (["export", "--device", "ncnn"], "--device: is not a flag of 'export'; allowed: with tailor, search, compare"),
        (
            ["search", "--device", "ncn"],
            "--device: 'ncn' is no device; allowed: ncnn, onnxruntime, android, .*did you mean 'ncnn'?",
        ),
        (["search", "device=[torch]", "--device", "ncnn"], "--device: 'ncnn' is no device; allowed: torch, "),
        (["compare", "1ms"], "compare: got 1 SubNets; allowed: two: NUMBERms, largest, "),
        (["compare", "1ms", "2ms", "3ms"], "compare: got 3 SubNets"),
        (["compare", "1ms", "-2ms"], "command line: unrecognized arguments: -2ms"),
        (["compare", "1ms", "net.json"], "chosen SubNet 'net.json': cannot be read .No such file or directory.; "),
        (["export", "net.json"], "chosen SubNet 'net.json': cannot be read"),
        (["export", "net.onnx"], "option 'net.onnx': cannot be read .*; allowed: key=value"),
        (["search", "--to", "net.json"], "--to: is of one chosen SubNet; choose it by --budget-ms, --accuracy-share, "),
        (["search", "--knee", "--to", "net.txt"], "--to: got 'net.txt'; allowed: a file that ends in .json"),
        (["search", "--knee", "--to", "/nowhere/net.json"], "--to: folder '/nowhere' does not exist"),
        (["search", "--knee", "--to", "net.json"], "--to: 2 devices have a chosen SubNet each; allowed: ncnn, onnx"),
        (
            ["search", "--knee", "-m", "search.seed=1,2", "--to", "net.json"],
            "--to: is one file, --multirun makes several",
        ),
        (["compare", "1ms", "0ms"], "SubNet '0ms': got a budget of 0; allowed: a number above 0"),
        (["compare", "1ms", "biggest"], "SubNet 'biggest': is no name of a SubNet; allowed: NUMBERms, largest, "),
        (["retarget"], "supernet: has no value"),
        (["retarget", "finetune.epochs=3"], "option 'finetune.epochs': is unknown"),
        (["nightly", "supernet=net", "finetune.epochs=3"], "option 'finetune.epochs': is unknown"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    import re

    assert re.search(line, _line(capsys, *words))


@pytest.mark.long_cases("words1")
@pytest.mark.parametrize("words", [["--help"], ["run", "finetune.epoch=3"], ["rum"]])
def test_help_and_typos_wait_for_no_heavy_library(words: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "flows.cli", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    assert "flows.cli.arguments" in imported
    assert not imported & {"torch", "prefect", "mlflow", "onnx", "pyarrow", "timm"}


def test_an_output_folder_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    line = _line(capsys, "run", f"output_dir={tmp_path / 'file' / 'out'}")
    assert "output folder" in line
    assert "output_dir=PATH" in line


def test_an_agent_that_is_not_reachable_is_told_before_anything_is_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("t" * 32)
    with refusing_port() as port:
        line = _line(
            capsys,
            "run",
            "device=[remote]",
            f"device.remote.agent=http://127.0.0.1:{port}",
            f"device.remote.token_file={tmp_path / 'token'}",
            f"output_dir={tmp_path / 'out'}",
        )
    assert f"127.0.0.1:{port}" in line
    assert not (tmp_path / "out" / "stages").exists()


def test_a_missing_token_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = _line(
        capsys,
        "run",
        "device=[remote]",
        "device.remote.agent=http://127.0.0.1:9",
        "device.remote.token_file=/nowhere/token",
        f"output_dir={tmp_path / 'out'}",
    )
    assert line.startswith("device.remote.token_file: '/nowhere/token' cannot be read")


@pytest.mark.long
def test_a_wrong_token_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from profiling_agents.client import local_agent

    (tmp_path / "token").write_text("wrong" * 8)
    with local_agent(backend="ncnn") as client:
        line = _line(
            capsys,
            "run",
            "device=[remote]",
            f"device.remote.agent={client.url}",
            f"device.remote.token_file={tmp_path / 'token'}",
            f"output_dir={tmp_path / 'out'}",
        )
    assert "token" in line


def test_a_profile_that_is_not_the_agents_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = _line(capsys, "run", "device=[ncnn]", "device.ncnn.threads=99", f"output_dir={tmp_path / 'out'}")
    assert "threads" in line


@pytest.mark.long
def test_a_precision_that_the_agent_has_not_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = _line(
        capsys, "run", "device=[onnxruntime]", "device.onnxruntime.precision=bf16", f"output_dir={tmp_path / 'out'}"
    )
    assert "--precision: got bf16; backend 'onnxruntime' runs models as they are: fp32" in line


@pytest.mark.long
def test_a_runtime_whose_extra_is_missing_is_one_line_before_anything_is_worked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("openvino", tmp_path, monkeypatch)
    line = _line(capsys, "run", "device=[onnxruntime,openvino]", f"output_dir={tmp_path / 'out'}")
    assert (
        "backend 'openvino': No module named 'openvino'; install it in the clone with: pip install -e '.[openvino]'"
        in line
    )
    assert [path for path in (tmp_path / "out" / "stages").rglob("*") if path.is_file()] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "missing", "command"),
    [
        ("ncnn", "ncnn", "pip install ncnn"),
        ("onnxruntime", "onnxruntime", "pip install onnx onnxruntime"),
        ("openvino", "openvino", r"pip install -e '\.\[openvino\]' \(on a bare device: pip install onnx openvino\)"),
        ("torch", "onnx2torch", "pip install onnx onnx2torch torch"),
    ],
)
def test_an_export_without_the_runtime_is_one_line_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    missing: str,
    command: str,
) -> None:
    hide(missing, tmp_path, monkeypatch)
    line = _line(capsys, "export", f"device=[{backend}]", f"output_dir={tmp_path / 'out'}")
    assert re.search(rf"backend '{backend}': No module named '{missing}'; install it .*with: {command}$", line), line


@pytest.mark.long_cases("words1-runs models as they are: fp32")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export.formats=[onnx,tflite]",), "export.formats.1: got 'tflite'; allowed: 'onnx', "),
        (("device=[onnxruntime]", "device.onnxruntime.precision=fp16"), "runs models as they are: fp32"),
        (("device=[ncnn]", "device.ncnn.precision=int4"), "device.ncnn.precision: got 'int4'; allowed: "),
        (
            ("device=[ncnn]", "device.ncnn.precision=int8"),
            "device.ncnn: precision=int8 with backend=ncnn; allowed for int8: onnxruntime, openvino",
        ),
        (("device=[tensorrt]",), "device: 'tensorrt' is no option; allowed: android, "),
    ],
)
def test_an_export_to_what_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in _line(capsys, "export", *words, f"output_dir={tmp_path / 'out'}")


@pytest.mark.long
def test_a_remote_agent_of_another_precision_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from profiling_agents.client import local_agent

    with local_agent(backend="ncnn") as client:
        token = client._transport._http.headers["Authorization"].removeprefix("Bearer ")
        (tmp_path / "token").write_text(token)
        line = _line(
            capsys,
            "run",
            "device=[remote]",
            f"device.remote.agent={client.url}",
            f"device.remote.token_file={tmp_path / 'token'}",
            "device.remote.precision=bf16",
            f"output_dir={tmp_path / 'out'}",
        )
    assert line.startswith("device.remote.precision: profile says bf16, agent has fp32")


def test_an_unknown_network_is_one_line_and_leaves_no_stage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = _line(capsys, "compile", "model.name=resnet26x", f"output_dir={tmp_path / 'out'}")
    assert "resnet26" in line
    assert [path for path in (tmp_path / "out" / "stages").rglob("*") if path.is_file()] == []


def test_a_missing_onnx_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = _line(capsys, "compile", "model=onnx", "model.path=/nowhere/net.onnx", f"output_dir={tmp_path / 'out'}")
    assert line.startswith("model file '/nowhere/net.onnx': does not exist")
