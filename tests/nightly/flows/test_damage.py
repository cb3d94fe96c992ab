"""A finished run whose files are damaged: the same command ends well, with one line for each folder that is made again."""

import re
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.support.damage import DAMAGES
from tests.support.flows.fixtures import Command

FILES = {
    "base": "weights.safetensors",
    "compile": "supernet/tensors.safetensors",
    "finetune": "supernet/tensors.safetensors",
    "enumerate": "operators.json",
    "profile": "result.json",
    "sensitivities": "sensitivities.json",
    "resources": "resources.json",
    "search": "front.json",
    "export": "*.onnx",
}
MEASURED = ("result.json", "latency.json", "resources.json")
"""With times, which are others when they are measured again."""
EARLY = {"enumerate": "result.json", "profile": "lut/part-0.parquet", "latency": "latency.json"}
"""Where latencies are measured again, later stages have other keys."""


@pytest.mark.parametrize(("files", "turn", "until"), [(FILES, 0, "run"), (EARLY, 2, "predict")])
def test_damaged_stages_are_made_again_with_one_line_each_and_the_same_results(
    command: Command,
    finished: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    files: dict[str, str],
    turn: int,
    until: str,
) -> None:
    """Each in another way: flipped bits, half a file, none, no content, other JSON."""
    output = Path(shutil.copytree(command.output, tmp_path / "out"))
    own = {row["stage"].partition("/")[0]: row for row in finished["stages"]}
    assert files.keys() <= own.keys()
    whole = {}
    for number, (stage, name) in enumerate(files.items()):
        for file in output.glob(f"stages/{stage}/**/{name}"):
            whole[file] = file.read_bytes()
            DAMAGES[(number + turn) % len(DAMAGES)](file)
    capfd.readouterr()
    again = Command(output)(until)
    said = re.findall(
        r"^(\w+)\S*: stored files are damaged \(.+\): quarantined as '(.+)' and", plain(capfd), re.MULTILINE
    )
    assert sorted(stage for stage, _ in said) == sorted(files)
    assert until == "predict" or again["supernet"] == finished["supernet"]
    for _, place in said:
        assert Path(place).is_dir()
        made = {
            file: content for file, content in whole.items() if file.is_relative_to(place.rpartition(".damaged")[0])
        }
        assert made
        for file, content in made.items():
            assert without_latency(file, file.read_bytes()) == without_latency(file, content) or file.name in MEASURED


def without_latency(file: Path, content: bytes) -> bytes:
    """An ONNX file as it is but for the latency that it tells, which is another one when it is measured again."""
    if file.suffix != ".onnx":
        return content
    model = onnx.load_from_string(content)
    facts = [fact for fact in model.metadata_props if fact.key != "autotailor.measured_ms"]
    del model.metadata_props[:]
    model.metadata_props.extend(facts)
    return model.SerializeToString(deterministic=True)


def plain(capfd: pytest.CaptureFixture[str]) -> str:
    """What was told, in lines that are not broken."""
    captured = capfd.readouterr()
    return captured.out + captured.err
