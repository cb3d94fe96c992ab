"""A network with two heads goes through the stages, from a table with two classes in each row to a bundle that answers both.

Shapes: B batch, C channels, H height, W width, V numbers, K classes.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

import adaptive_runtime
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.server.protocol import InferenceFormat
from tasks import report
from tasks.base.artifacts import RESULT_FILE, read_json
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings, load, load_splits
from tasks.data.batches import only, tensors
from tasks.data.problems import SEVERAL_CLASSES
from tasks.evaluation.models import ModelSettings, create
from tasks.evaluation.subnets import Accuracy, count_correct
from tasks.training import compile as compile_stage
from tasks.training.evaluate_given import evaluate_file
from tasks.training.finetune.numerics import soft_cross_entropy
from tests.support.ir.networks import ResidualBlock
from tests.support.problems.stages import IN_A_BUNDLE, SmallRun

SIDE, ROWS = 16, 240
HEADS = {"light": 2, "warmth": 3}
NAMES = ("light: bright", "light: dark", "warmth: cold", "warmth: hot", "warmth: warm")
MODEL = ModelSettings(kind="callable", name=f"{__file__}:network")
FIRST = {"light": 0, "warmth": 2}
"""The first class of each target."""
SPACE = {"resolution": [8, SIDE], "*.expand_ratio": [1, 2]}


class TwoHeads(nn.Module):
    """photo (B, C, H, W) and weather (B, V) -> logits (B, K) of each head by name."""

    def __init__(self, heads: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        stem = nn.Conv2d(shapes["photo"][0], 8, 3, stride=2, padding=1, bias=False)
        self.photo = nn.Sequential(stem, nn.BatchNorm2d(8), nn.ReLU(), ResidualBlock(8, 16))
        self.joined = nn.Sequential(nn.Linear(8 + shapes["weather"][0], 24), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(24, count) for name, count in heads.items()})

    def forward(self, photo: torch.Tensor, weather: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.joined(torch.cat((self.photo(photo).mean((2, 3)), weather), 1))
        return {name: head(seen) for name, head in reversed(list(self.heads.items()))}


def network(num_classes: int, shapes: Mapping[str, tuple[int, ...]], heads: Mapping[str, int]) -> nn.Module:
    assert num_classes == sum(heads.values())
    return TwoHeads(heads, shapes)


def confused(num_classes: int, shapes: Mapping[str, tuple[int, ...]], heads: Mapping[str, int]) -> nn.Module:
    """Its heads are of other sizes, though of as many numbers together."""
    return TwoHeads({"one": 1, "four": 4}, shapes)


def _written(folder: Path) -> Path:
    """A table whose photos tell how light it is, and whose numbers how warm."""
    rng = np.random.default_rng(0)
    (folder / "files").mkdir(parents=True)
    for name, level in (("dark", 60), ("bright", 190)):
        pixels = np.clip(rng.normal(level, 20, (20, 20, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "files" / f"{name}.png")
    with (folder / "days.csv").open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(("photo", "celsius", "light", "warmth"))
        for row in range(ROWS):
            light, warmth = ("dark", "bright")[row % 2], ("cold", "warm", "hot")[row // 2 % 3]
            celsius = {"cold": 0, "warm": 18, "hot": 35}[warmth] + rng.normal()
            lines.writerow([f"files/{light}.png", round(celsius, 2), light, warmth])
    return folder


def _settings(folder: Path, **options: object) -> DataSettings:
    own = {"inputs": {"photo": "image", "weather": ("celsius",)}, "targets": tuple(HEADS), "resolution": SIDE}
    return DataSettings.model_validate(
        {"kind": "table", "path": folder, "workers": 1, "augment": False, **own, **options}
    )


class Seen(nn.Module):
    """An image (B, C, H, W) alone -> logits (B, K) of each head by name."""

    def __init__(self, heads: Mapping[str, int], channels: int) -> None:
        super().__init__()
        stem = nn.Conv2d(channels, 8, 3, stride=2, padding=1, bias=False)
        self.seen = nn.Sequential(stem, nn.BatchNorm2d(8), nn.ReLU(), ResidualBlock(8, 16))
        self.heads = nn.ModuleDict({name: nn.Linear(8, count) for name, count in heads.items()})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.seen(x).mean((2, 3))
        return {name: head(seen) for name, head in self.heads.items()}


def network_of_an_image(num_classes: int, in_chans: int, heads: Mapping[str, int]) -> nn.Module:
    assert num_classes == sum(heads.values())
    return Seen(heads, in_chans)


def _tinted(folder: Path) -> DataSettings:
    """A table of photos alone, whose brightness tells how light it is, and whose colour how warm."""
    rng = np.random.default_rng(0)
    (folder / "files").mkdir(parents=True)
    lines = ["photo,light,warmth"]
    for row in range(ROWS):
        light, warmth = row % 2, row // 2 % 3
        pixels = rng.normal(50 + 70 * light, 8, (20, 20, 3))
        pixels[..., warmth] += 80
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / "files" / f"{row}.png")
        lines.append(f"files/{row}.png,{('dark', 'bright')[light]},{('hot', 'warm', 'cold')[warmth]}")
    (folder / "days.csv").write_text("\n".join(lines))
    return _settings(folder, inputs={"photo": "image"})


def test_several_classes_of_one_image_go_from_a_table_to_a_bundle(tmp_path: Path) -> None:
    data = _tinted(tmp_path / "days")
    model = ModelSettings(kind="callable", name=f"{__file__}:network_of_an_image")
    run = SmallRun("one_image", data, files=IN_A_BUNDLE.model_copy(update={"formats": ("onnx",)}))
    sources = run.from_network(tmp_path, model, SPACE, steps=8, epochs=8)
    export = sources.devices[0].export
    for card in read_json(export / RESULT_FILE)["subnets"]:
        assert (card["problem"], tuple(card["classes"])) == ("several_classes", NAMES)
        assert card["preparation"]["crop"] == "central square"
        assert card["accuracy"]["test"] > 0.8, "at random it is 0.42"
    x, target_BT = next(iter(load(data, "test").batches(ROWS)))
    with adaptive_runtime.load(export / "bundle", prepares=False) as served:
        labels = served.infer(only(x).numpy()).labels
    assert labels is not None
    right = [labels[name] - first == target_BT[:, at].numpy() for at, (name, first) in enumerate(FIRST.items())]
    assert np.mean(right) > 0.8
    timm = create(
        ModelSettings(kind="timm", name="mobilenetv3_small_050", pretrained=False),
        5,
        load(data, "train").form,
        problem=load(data, "train").problem,
    )
    assert isinstance(timm, nn.Module)
    assert timm.eval()(only(x)[:2]).shape == (2, 5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSettings:
    return _settings(_written(tmp_path_factory.mktemp("days")))


@pytest.fixture(scope="module")
def sources(data: DataSettings, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from the table to exported winners in a bundle, on onnxruntime here."""
    return SmallRun("two_heads", data).from_network(tmp_path_factory.mktemp("heads"), MODEL, SPACE, steps=8, epochs=8)


@pytest.mark.long
def test_files_of_a_network_with_two_heads_agree_with_torch_and_the_report_tells_its_score(
    sources: report.Sources, tmp_path: Path
) -> None:
    (device,) = sources.devices
    cards = read_json(device.export / RESULT_FILE)["subnets"]
    assert cards
    for card in cards:
        assert {name: file["state"] for name, file in card["files"].items()} == {"onnx": "ok", "ncnn": "ok"}
        assert (card["problem"], tuple(card["classes"])) == ("several_classes", NAMES)
    assert max(card["accuracy"]["test"] for card in cards) > 0.8, "at random it is 0.42"
    assert report.run(sources, report.Settings(), tmp_path)["metric"] == "mean top-1 accuracy of all targets"


def test_a_bundle_gives_the_class_of_each_target(sources: report.Sources, data: DataSettings) -> None:
    x, target_BT = next(iter(load(data, "test").batches(ROWS)))
    photo, weather = (one.numpy() for one in tensors(x))
    with adaptive_runtime.load(sources.devices[0].export / "bundle", prepares=False) as model:
        right = []
        for subnet in OpenBundle.open(sources.devices[0].export / "bundle").manifest.subnets:
            model.use(subnet.digest)
            answer = model.infer({"photo": photo, "weather": weather})
            assert answer.logits.shape == (len(photo), 5)
            assert answer.labels is not None
            assert set(answer.labels) == set(HEADS)
            for start, place in ((0, 0), (2, 1)):
                wanted = start + target_BT[:, place].numpy()
                right.append((answer.labels[tuple(HEADS)[place]] == wanted).mean())
        assert max(right) > 0.9
        told = InferenceFormat.of(model).outputs
    assert told == {"logits": [-1, 5], "light": [-1], "warmth": [-1]}


class InATuple(nn.Module):
    """What another network gives, without the names."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, photo: torch.Tensor, weather: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.network(photo, weather).values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_onnx_file_with_two_outputs_is_the_network_that_it_was_made_of(data: DataSettings, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, test = TwoHeads(HEADS, {"photo": (3,), "weather": (1,)}).eval(), load(data, "test")
    torch.onnx.export(
        InATuple(module),
        tensors(test.form.blank(2)),
        tmp_path / "heads.onnx",
        dynamo=False,
        opset_version=17,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        input_names=["photo", "weather"],
        output_names=list(reversed(HEADS)),
        dynamic_axes={name: {0: "batch"} for name in ("photo", "weather", *HEADS)},
    )
    settings = ModelSettings(kind="onnx", path=tmp_path / "heads.onnx")
    net = compile_stage.supernet_of(compile_stage.Settings(), settings, data, None, SPACE)

    def joined(*x: torch.Tensor) -> torch.Tensor:
        found = module(*x)
        return torch.cat([found[name] for name in HEADS], 1)

    x = tensors(next(iter(test.batches(8)))[0])
    with torch.no_grad():
        torch.testing.assert_close(net.build(net.max_config)(*x), joined(*x), rtol=1e-4, atol=1e-5)
        wanted = count_correct(joined, test.batches(32), test.problem).share
    assert evaluate_file(settings, data, tmp_path, Silent())["test_accuracy"] == pytest.approx(wanted, abs=1e-6)


def test_losses_and_scores_are_means_over_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, taught = (torch.randn(40, 5, generator=generator) for _ in range(2))
    target_BT = torch.stack([torch.randint(0, count, (40,), generator=generator) for count in HEADS.values()], 1)
    problem = SEVERAL_CLASSES.__class__(HEADS)
    first, second = (
        functional.cross_entropy(*pair)
        for pair in ((outputs[:, :2], target_BT[:, 0]), (outputs[:, 2:], target_BT[:, 1]))
    )
    torch.testing.assert_close(problem.loss(outputs, target_BT, 0.0), (first + second) / 2)
    pulls = [soft_cross_entropy(outputs[:, places], taught[:, places]) for places in (slice(0, 2), slice(2, 5))]
    torch.testing.assert_close(problem.distillation(outputs, taught, soft_cross_entropy), torch.stack(pulls).mean())
    tally = problem.tally()
    for rows in (slice(0, 30), slice(30, 40)):
        tally.add(outputs[rows], target_BT[rows])
    found = Accuracy.tallied(tally.found())
    right = [
        (outputs[:, places].argmax(1) == target_BT[:, at]).float().mean()
        for at, places in enumerate((slice(0, 2), slice(2, 5)))
    ]
    assert found.share == pytest.approx(float(sum(right)) / 2)
    assert set(found.each.tolist()) == {0.0, 0.5, 1.0}
    assert found.loss == pytest.approx(float(first + second) / 2, rel=1e-6)


def test_targets_and_heads_that_do_not_fit_are_one_clear_line(data: DataSettings, tmp_path: Path) -> None:
    train = load_splits(data)["train"]
    assert train.class_names == NAMES
    other = MODEL.model_copy(update={"name": f"{__file__}:confused"})
    with pytest.raises(UserError, match=r"heads give \[4, 1\] numbers for each sample; allowed: light 2, warmth 3"):
        create(other, train.classes, train.form, problem=train.problem)
    assert data.path is not None
    with pytest.raises(UserError, match="no column 'colour'"):
        load_splits(_settings(data.path, targets=("light", "colour")))
    for options, told in (
        ({"targets": ("light",)}, r"data.targets=\[light\]; allowed: two or more, each once"),
        ({"metric": "macro_f1"}, "data.metric=macro_f1 with data.kind=table and several data.targets; allowed: acc"),
    ):
        with pytest.raises(ValueError, match=told):
            _settings(data.path, **options)
