"""A SubNet plays a stream under each method: errors by window and phase, events, side files; a killed one goes on."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from pydantic import ValidationError
from torch import nn

import tailor_ir
from tasks.adaptation import AdaptationSettings, AdaptiveSubnet, load_adapted
from tasks.adaptation.streams import WINDOWS_FILE, Settings, SubnetOfStream, check_images, run
from tasks.adaptation.streams.stage import phases_of
from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.results import STREAM_FILE, StreamedNetwork
from tasks.data import DataSettings
from tasks.data.drift import plan_stream
from tasks.data.settings import DriftSettings
from tests.support.adaptation.small_subnets import supernet

DATA = DataSettings.model_validate({"kind": "digits", "workers": 1})
DRIFT = DriftSettings(corruptions=("contrast", "gaussian_noise"), images=40, batch_size=16)


class Told(Silent):
    """What a stage says, and its metrics."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: list[tuple[dict[str, float], int]] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.values.append((values, step))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SuperNet with BatchNorm, ten classes."""
    found = tmp_path_factory.mktemp("supernet") / "supernet"
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    torch.manual_seed(0)
    tailor_ir.compile(network.eval(), torch.zeros(1, 3, 32, 32), {"resolution": [24, 32]}).save(found)
    return found


def played(folder: Path, out: Path, methods: list[str], progress: Silent, **drift: Any) -> StreamedNetwork:
    out.mkdir(exist_ok=True)
    settings = Settings.model_validate({"methods": methods, "window_images": 30})
    chosen = DRIFT.model_copy(update=drift)
    subnet = SubnetOfStream(supernet=folder, data=DATA, title="largest", recalibration_images=64)
    result = run(settings, AdaptationSettings(), chosen, subnet, out, progress)
    found = StreamedNetwork.read(out / STREAM_FILE)
    assert found.to_json() == result
    return found


def test_each_method_has_errors_by_window_and_phase(folder: Path, tmp_path: Path) -> None:
    told = Told()
    found = played(folder, tmp_path / "out", ["source", "tent", "guarded"], told)
    assert [one.method for one in found.methods] == ["source", "tent", "guarded"]
    assert [(phase.name, phase.first, phase.images) for phase in found.phases] == [
        ("contrast", 0, 40),
        ("gaussian_noise", 40, 40),
    ]
    for one in found.methods:
        assert len(one.window_error_percent) == 3
        whole = np.average(one.window_error_percent, weights=[30, 30, 20])
        assert whole == pytest.approx(one.error_percent)
        assert np.mean(one.phase_error_percent) == pytest.approx(one.error_percent)
        steps = [step for values, step in told.values if f"window_error_percent.{one.method}" in values]
        assert steps == [30, 60, 80]
    rows = parquet.read_table(tmp_path / "out" / WINDOWS_FILE).to_pylist()
    assert [row["error_percent"] for row in rows if row["method"] == "tent"] == list(
        found.methods[1].window_error_percent
    )
    assert rows[2]["first_image"] == 60
    assert rows[2]["images"] == 20


def test_a_side_file_has_what_a_method_has_adapted(folder: Path, tmp_path: Path) -> None:
    found = played(folder, tmp_path / "out", ["source", "tent"], Silent())
    source, tent = found.methods
    assert source.side_file is None
    assert tent.side_file is not None
    net = tailor_ir.load(folder)
    drawn = map(torch.from_numpy, net.sample_inputs(net.max_config, np.random.default_rng(0), 8))
    others = net.recalibrate(net.max_config, [tuple(drawn)])
    with_other_statistics = AdaptiveSubnet.of(net, net.max_config, others)
    with pytest.raises(UserError, match="it belongs to the SubNet with the BatchNorm statistics"):
        load_adapted(tmp_path / "out" / tent.side_file, with_other_statistics, net, net.max_config)


KILLED = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from tasks.base.progress import Silent
from tests.integration.adaptation.test_streams import played

class Bar:
    def __init__(self, name):
        self.name = name
    def advance(self, count=1):
        if self.name == "tent":
            os.kill(os.getpid(), signal.SIGKILL)
    def note(self, text):
        pass

class Killing(Silent):
    @contextmanager
    def bar(self, name, total, done=0):
        yield Bar(name)

played(Path(sys.argv[1]), Path(sys.argv[2]), ["source", "tent"], Killing())
"""


@pytest.mark.long
def test_a_killed_stage_goes_on_with_the_method_in_work(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(out)], check=False)
    assert process.returncode == -signal.SIGKILL
    (line,) = read_lines(out / "methods.jsonl")
    assert line["method"] == "source"
    found = played(folder, out, ["source", "tent"], Silent())
    assert found.methods[0].images_per_s == line["images_per_s"]  # not played again
    assert found.methods[1].side_file is not None


def test_a_network_without_normalisation_is_one_clear_line(tmp_path: Path) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    tailor_ir.compile(network.eval(), torch.zeros(1, 3, 32, 32)).save(tmp_path / "net")
    told = Told()
    found = played(tmp_path / "net", tmp_path / "out", ["source", "batchnorm", "guarded"], told)
    assert [one.method for one in found.methods] == ["source"]
    assert set(found.left_out) == {"batchnorm", "guarded"}
    (line,) = told.lines
    assert line.startswith("left out: batchnorm, guarded: the SubNet has no normalisation layer with a scale; allowed:")


def test_statistics_of_batches_need_batchnorm(tmp_path: Path) -> None:
    supernet("layer").save(tmp_path / "net")
    told = Told()
    found = played(tmp_path / "net", tmp_path / "out", ["batchnorm"], told)
    assert found.methods == ()
    assert told.lines == ["left out: batchnorm: the network has no BatchNorm"]


def test_too_few_images_are_told_with_the_number_that_is_needed() -> None:
    with pytest.raises(
        UserError, match=r"drift.images=301: the test split of 'digits' has \d+ images.* 301 are needed"
    ):
        check_images(DATA, DriftSettings(images=301))
    few = DATA.model_copy(update={"validation_share": 0.01})
    with pytest.raises(UserError, match=r"the validation split of 'digits' has \d+ images.*: 96 are needed"):
        check_images(few, DriftSettings(images=10))
    check_images(DATA, DriftSettings(images=100))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("texts", "texts cannot do it yet: streams and their drift are of images"),
        ("glyph_scenes", "segmentation cannot do it yet: methods of adaptation go by the classes of whole images"),
    ],
)
def test_data_that_cannot_drift_are_told_before_anything_is_trained(kind: str, told: str) -> None:
    data = DataSettings.model_validate({"kind": kind, "images": 600, "resolution": 16})
    with pytest.raises(UserError, match=f"stage 'stream': {told}; leave streams out"):
        check_images(data, DriftSettings(images=10))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subnets": ["largst"]}, "is no name of a SubNet; allowed: NUMBERms, .*, original, smallest_budget"),
        ({"subnets": ["largest", "largest"]}, "two are called 'largest'"),
        ({"methods": ["tent", "tent"]}, "a method is there twice"),
        ({"methods": ["tnet"]}, "'tent'"),
    ],
)
def test_typos_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings.model_validate(given)


def test_phases_are_runs_of_one_corruption() -> None:
    labels = np.arange(60) % 10
    drift = DRIFT.model_copy(update={"images": 20})

    def names(kind: str) -> list[str]:
        settings = DriftSettings.model_validate({**drift.model_dump(), "stream": kind, "phases": 2})
        return [phase.name for phase in phases_of(plan_stream(settings, labels), settings)]

    assert names("mixed") == ["mixed"]
    assert names("gradual") == ["contrast", "gaussian_noise"]
    assert names("returning") == ["contrast", "clean", "gaussian_noise", "clean"]
    assert names("shares") == ["clean"]
