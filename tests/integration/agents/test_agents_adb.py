"""Android through adb, on output in the formats of adb, getprop and benchncnn; no phone took part.

`replay` stands in the place of the adb program: it answers each command with a recorded file and keeps the commands.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from profiling_agents.backends import ncnn_adb
from profiling_agents.client import AgentClient, AgentError, MeasureSettings, local_agent
from tests.support import SUPPORT
from tests.support.agents import agent_models as models
from tests.support.agents import hostile_names

RECORDED = SUPPORT / "agents" / "recorded"
SERIAL = "R58M12ABCDE"
BIG = ncnn_adb.Phone(SERIAL, "big")
SETTINGS = MeasureSettings(warmup_ms=0.0, min_blocks=1, samples_per_block=5, time_cap_ms=1000.0)
REPLAY = """\
#!{python}
import json, shutil, sys
from pathlib import Path
here = Path(__file__).parent
if "push" in sys.argv:
    shutil.copy(sys.argv[-2], here / "pushed.param")
with (here / "commands.jsonl").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + chr(10))
words = " ".join(sys.argv[1:])
for start, name, code in json.loads((here / "answers.json").read_text()):
    if start in words:
        print((Path({recorded!r}) / name).read_text() if name else "", end="")
        sys.exit(code)
sys.exit(9)
"""


@dataclass(frozen=True)
class Replay:
    """The program's folder."""

    folder: Path

    def answers(self, benchmark: str, code: int = 0, digest: int = 0) -> None:
        answers = [
            ("devices", "devices.txt", 0),
            ("getprop", "getprop.txt", 0),
            ("sha256sum", "sha256sum.txt", digest),
            ("mkdir", "", 0),
            ("push", "", 0),
            ("benchncnn", benchmark, code),
            ("rm -f", "", 0),
        ]
        (self.folder / "answers.json").write_text(json.dumps(answers))

    def pushed(self) -> list[list[str]]:
        """Words of the lines of the file that was pushed last."""
        return [line.split(" ") for line in (self.folder / "pushed.param").read_text().splitlines()]

    def commands(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "commands.jsonl").read_text().splitlines()]


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    program = tmp_path / "adb"
    program.write_text(REPLAY.format(python=sys.executable, recorded=str(RECORDED)))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    one = Replay(tmp_path)
    one.answers("benchncnn.txt")
    return one


@pytest.fixture
def phone(replay: Replay) -> Iterator[AgentClient]:
    with local_agent("ncnn-adb", options=["--precision", "fp16", "--provider", f"{SERIAL}/big"]) as client:
        yield client


def text(name: str) -> str:
    return (RECORDED / name).read_text()


def test_devices_and_their_states_are_read() -> None:
    assert ncnn_adb.parse_devices(text("devices.txt")) == {
        SERIAL: "device",
        "emulator-5554": "offline",
        "192.168.1.30:5555": "unauthorized",
    }
    assert ncnn_adb.parse_devices("List of devices attached\n\n") == {}


def test_properties_are_read() -> None:
    found = ncnn_adb.parse_properties(text("getprop.txt"))
    assert found["ro.product.model"] == "Pixel 7"
    assert found["ro.build.fingerprint"].startswith("google/panther/")


def test_times_are_read_and_everything_else_is_an_error_with_what_was_printed() -> None:
    assert ncnn_adb.parse_mean_ms(text("benchncnn.txt")) == 7.12
    with pytest.raises(AgentError, match=r"printed 0 times instead of one; .*Nonsense not exists"):
        ncnn_adb.parse_mean_ms(text("benchncnn_broken.txt"))
    with pytest.raises(AgentError, match="printed 2 times"):
        ncnn_adb.parse_mean_ms(2 * text("benchncnn.txt"))


def test_the_benchmark_gets_loops_threads_cores_and_turned_shapes() -> None:
    command = BIG.benchmark("m.param", [(3, 224, 320), (10,)], loops=8, threads=2)
    assert command[:4] == ["adb", "-s", SERIAL, "shell"]
    assert shlex.split(command[4]) == [
        *("cd", "/data/local/tmp/autotailor", "&&", "exec", "env", "OMP_NUM_THREADS=2", "timeout", "50"),
        *("/data/local/tmp/benchncnn", "8", "2", "2", "-1", "0", "param=m.param", "shape=[320,224,3],[10]"),
    ]


def test_a_mask_goes_through_taskset() -> None:
    command = ncnn_adb.Phone(SERIAL, "f0").benchmark("m.param", [(4,)], loops=1, threads=1)
    words = shlex.split(command[4])
    assert words[words.index("taskset") + 1] == "f0"
    assert words[words.index("/data/local/tmp/benchncnn") + 3] == "0"


def test_what_the_devices_shell_reads_is_quoted() -> None:
    command = BIG.benchmark("a; reboot", [(4,)], loops=1, threads=1)
    assert "'param=a; reboot'" in command[4]


@pytest.mark.parametrize("provider", [None, "", "-s", "a b", f"{SERIAL}/fast", f"{SERIAL}/xyz", "$(reboot)"])
def test_other_providers_are_refused(provider: str | None) -> None:
    with pytest.raises(AgentError, match="allowed: SERIAL or SERIAL/CORES"):
        ncnn_adb.Phone.parse(provider)


@pytest.mark.long
def test_an_agent_beside_a_phone_describes_it_and_measures_by_the_phones_clock(
    phone: AgentClient, replay: Replay
) -> None:
    found = phone.capabilities()
    assert (found.backend, found.precision, found.provider) == ("ncnn-adb", "fp16", f"{SERIAL}/big")
    assert found.accelerator == "Google Pixel 7 (gs201, Android 14, arm64-v8a)"
    assert found.build.startswith("0f343b0931126a20 google/panther/")
    (result,) = phone.measure([models.convolution("ncnn", "conv")], SETTINGS)
    assert (result.state, result.p50_ms, result.repeats) == ("ok", pytest.approx(7.12, rel=1e-9), 1)
    assert result.n >= 5
    pushed = [one for one in replay.commands() if "push" in one]
    assert len(pushed) == 1
    assert Path(pushed[0][3]).is_absolute()
    assert pushed[0][4] == f"/data/local/tmp/autotailor/{Path(pushed[0][3]).name}.param"
    assert ["-s", SERIAL, "shell", f"rm -f {pushed[0][4]}"] in replay.commands()


@pytest.mark.long
def test_names_of_a_foreign_file_do_not_reach_the_phone(phone: AgentClient, replay: Replay, tmp_path: Path) -> None:
    """A file of lines can hold only names without spaces."""
    layers = ["".join(name.split()) for name in hostile_names.running(tmp_path / "ran")]
    blobs = [f"{name};blob" for name in layers]
    lines = [f"Input {layers[0]} 0 1 {blobs[0]}"]
    lines += [f"ReLU {layers[i]} 1 1 {blobs[i - 1]} {blobs[i]}" for i in range(1, len(layers))]
    job = models.ncnn_job("hostile", lines, len(blobs), b"", (1, 3, 8, 8))
    (result,) = phone.measure([replace(job, input_names=(blobs[0],), output_names=(blobs[-1],))], SETTINGS)
    assert result.state == "ok", result.reason
    _, _, first, *rest = replay.pushed()
    assert (first[0], first[2:4], len(rest)) == ("Input", ["0", "1"], len(layers) - 1)
    assert all((kind, counts) == ("ReLU", ["1", "1"]) for kind, _, *counts in (line[:4] for line in rest))
    assert all(re.fullmatch(r"layer\d+_", line[1]) for line in (first, *rest))
    assert all(re.fullmatch(r"blob\d+_", blob) for line in (first, *rest) for blob in line[4:])


def test_what_is_too_short_for_two_decimals_fails_and_is_never_zero(phone: AgentClient, replay: Replay) -> None:
    replay.answers("benchncnn_short.txt")
    (result,) = phone.measure([models.convolution("ncnn", "conv")], SETTINGS)
    assert (result.state, result.p50_ms) == ("failed", None)
    assert result.reason is not None
    assert result.reason.startswith("takes 0.00 ms, below the 0.1 ms")


@pytest.mark.long
def test_a_model_that_the_phone_refuses_fails_with_what_it_printed(phone: AgentClient, replay: Replay) -> None:
    replay.answers("benchncnn_broken.txt")
    (result,) = phone.measure([models.convolution("ncnn", "conv")], SETTINGS)
    assert result.reason is not None
    assert "layer Nonsense not exists" in result.reason
    replay.answers("benchncnn_broken.txt", code=139)
    (result,) = phone.measure([models.convolution("ncnn", "conv")], SETTINGS)
    assert result.reason is not None
    assert "failed with code 139" in result.reason


def test_what_only_the_phone_could_measure_is_refused(phone: AgentClient) -> None:
    (result,) = phone.measure([models.convolution("ncnn", "conv")], SETTINGS.model_copy(update={"cache": "cold"}))
    assert result.reason is not None
    assert "another machine computes this model" in result.reason


def test_batches_are_refused_with_a_reason(phone: AgentClient) -> None:
    batch = replace(models.convolution("ncnn", "batch"), input_shapes=((2, 3, 8, 8),))
    (result,) = phone.measure([batch], SETTINGS)
    assert result.reason is not None
    assert "benchncnn takes batch 1" in result.reason


@pytest.mark.long_cases("options0-emulator-5554 is offline")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "fp16", "--provider", "emulator-5554"], "emulator-5554 is offline"),
        (["--precision", "fp16", "--provider", "absent"], "absent is not connected"),
        (["--precision", "fp16"], "allowed: SERIAL or SERIAL/CORES"),
        (["--provider", SERIAL], "benchncnn runs models in: fp16"),
    ],
)
@pytest.mark.usefixtures("replay")
def test_devices_that_are_not_ready_are_one_line(options: list[str], message: str) -> None:
    with pytest.raises(AgentError, match=message), local_agent("ncnn-adb", options=options):
        pass


def test_a_phone_without_the_benchmark_says_how_to_bring_it_there(replay: Replay) -> None:
    replay.answers("benchncnn.txt", digest=1)
    options = ["--precision", "fp16", "--provider", SERIAL]
    with (
        pytest.raises(AgentError, match="adb push benchncnn /data/local/tmp/"),
        local_agent("ncnn-adb", options=options),
    ):
        pass
