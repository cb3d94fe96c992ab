"""SubNets of .onnx files whose BatchNorms were folded: put back, left folded, and never folded.

    python -m benchmarks.opened_batch_norms [--networks resnet26 …] [--subnets 50] [--train EPOCHS]
                                            [--work DIR] [--json FILE] [--markdown]

Networks learn digits with noise at 32 pixels as stage `base` does it, and are exported as torch does it, which
folds BatchNorms into convolutions. Three SuperNets of the same weights: *unfolded* is made of the network itself, *opened*
of the file with training images as stage `compile` gives them, *folded* of the file alone. Nothing is trained: accuracies
on the test images of the same random SubNets of the proposed space, each with BatchNorm statistics of its own where there
are any. Channels are in the network's own order, and in the one that stage `compile` chooses. Bar: in the mean over SubNets
*opened* is at most half a point below *unfolded*. With --train both are then trained alike, as stage `finetune` trains networks
that come trained, and compared again; bar: 0.3 points. Spread: standard deviation of their differences over SubNets. DIR
keeps the trained networks.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.ranking import random_subnets
from benchmarks.tables import show
from benchmarks.trained import base_weights, once, settings_of
from tailor_ir import SuperNet
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load, load_splits
from tasks.evaluation.models import ModelSettings, create, load_weights
from tasks.evaluation.models.settings import CompileSettings
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.training import finetune
from tasks.training.compile import sort_channels, supernet_of
from tasks.training.finetune.settings import RangeSettings

COMMON = (
    "data=noisy_digits",
    "data.resolution=32",
    "data.validation_share=0.2",
    "data.test_share=0.2",
    "data.workers=1",
    "base.processes=1",
    "model=timm",
)
SGD = ("base.optimiser=sgd", "base.learning_rate=0.05", "base.weight_decay=0", "model.options={output_stride:16}")
NETWORKS: dict[str, tuple[str, ...]] = {
    "resnet26": (
        "model.name=resnet26",
        "model.options={channels:[32,64,128,256]}",
        "base.learning_rate=0.002",
        "base.epochs=15",
    ),
    "mobilenetv2": (*SGD, "model.name=mobilenetv2_050", "base.epochs=30"),
    "efficientnet": (*SGD, "model.name=efficientnet_b0", "base.epochs=20"),
}
VERSIONS = ("unfolded", "opened", "folded")
TRAINED = VERSIONS[:2]
BAR_POINTS, BAR_TRAINED_POINTS = 0.5, 0.3
SEED = 1


class Row(TypedDict):
    """Accuracies in [0, 1] by version: of the largest SubNet, and means over SubNets. norms: put back, and in the network.

    epochs: of the training of the SuperNets.
    """

    network: str
    is_chosen: bool
    epochs: int
    subnets: int
    norms: tuple[int, int]
    largest: dict[str, float]
    means: dict[str, float]
    difference_points: float
    spread_points: float


def exported(model: ModelSettings, data: DataSettings, weights: Path, file: Path) -> None:
    """Write the network as torch's exporter does it if nothing else is asked for."""
    train = load(data, "train")
    network = create(model, train.classes, train.form, problem=train.problem)
    assert isinstance(network, torch.nn.Module)
    load_weights(network, weights)
    torch.onnx.export(network.eval(), (train.form.blank(1),), file, dynamo=False)


def supernets(name: str, work: Path) -> tuple[dict[str, SuperNet], DataSettings]:
    """The SuperNet of each version, with channels in the network's own order."""
    config = settings_of((*COMMON, *NETWORKS[name]))
    weights = base_weights(config, work)
    file = work / "folded.onnx"
    exported(config.model, config.data, weights, file)
    folded = ModelSettings(kind="onnx", name=name, path=file)
    nets = {"unfolded": supernet_of(config.compile, config.model, config.data, weights, None)}
    for version, opens in (("opened", True), ("folded", False)):
        settings = CompileSettings(open_batch_norms=opens)
        nets[version] = supernet_of(settings, folded, config.data, None, None)
    return nets, config.data


def norms_in(net: SuperNet) -> int:
    """The number of BatchNorms of a network."""
    return sum(node.op == "BatchNormalization" for node in net.structure.graph.nodes)


def measure(name: str, count: int, epochs: int, work: Path) -> list[Row]:
    """Rows for both orders of channels, and for trained SuperNets."""
    nets, data = supernets(name, work)
    rows = [row(name, nets, data, count, is_chosen=False)]
    for version, net in nets.items():
        for line in sort_channels(net, data, trained=True):
            print(f"{name}, {version}: {line}")
    rows.append(row(name, nets, data, count, is_chosen=True))
    if epochs:
        for version in TRAINED:
            nets[version] = trained(nets[version], data, epochs, work / version)
        rows.append(
            row(name, {version: nets[version] for version in TRAINED}, data, count, is_chosen=True, epochs=epochs)
        )
    return rows


def trained(net: SuperNet, data: DataSettings, epochs: int, work: Path) -> SuperNet:
    """The SuperNet after the training of stage `finetune` with its defaults for networks that come trained."""

    def run(folder: Path) -> StageResult:
        net.save(work / "untrained")
        settings = finetune.Settings(epochs=epochs, processes=1, gentle=True, ranges=RangeSettings(subnets=0))
        return finetune.run(settings, data, work / "untrained", folder, Terminal())

    return tailor_ir.load(once(work / f"{epochs} epochs", run) / "supernet")


def row(
    name: str, nets: Mapping[str, SuperNet], data: DataSettings, count: int, *, is_chosen: bool, epochs: int = 0
) -> Row:
    """Accuracies of the largest SubNet and of random ones, of each version."""
    splits = load_splits(data)
    unfolded = nets["unfolded"]
    configs = [unfolded.max_config, *random_subnets(unfolded, count, SEED)]
    shares: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for version, net in nets.items():
            images = EvaluationData(splits["test"], splits["train"])
            file = Path(folder) / f"{version}.jsonl"
            found = accuracies(net, configs, images, file, Terminal(), f"{name}, {version}")
            shares[version] = np.array([each.share for each in found])
    points = 100 * (shares["opened"] - shares["unfolded"])[1:]
    return {
        "network": name,
        "is_chosen": is_chosen,
        "epochs": epochs,
        "subnets": len(points),
        "norms": (norms_in(nets["opened"]), norms_in(unfolded)),
        "largest": {version: float(each[0]) for version, each in shares.items()},
        "means": {version: float(each[1:].mean()) for version, each in shares.items()},
        "difference_points": float(points.mean()),
        "spread_points": float(points.std()),
    }


def _show(rows: Sequence[Row], *, markdown: bool) -> None:
    heads = (
        "network",
        "channels",
        "epochs",
        "put back",
        *(f"largest, {version} [%]" for version in VERSIONS),
        *(f"mean of SubNets, {version} [%]" for version in VERSIONS),
        "opened − unfolded [points]",
        "spread",
    )
    cells = [
        (
            each["network"],
            "chosen order" if each["is_chosen"] else "own order",
            str(each["epochs"]),
            "{} of {}".format(*each["norms"]),
            *(
                f"{100 * shares[version]:.1f}" if version in shares else ""
                for shares in (each["largest"], each["means"])
                for version in VERSIONS
            ),
            f"{each['difference_points']:+.2f}",
            f"{each['spread_points']:.2f}",
        )
        for each in rows
    ]
    show(heads, cells, markdown=markdown, width=180)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--subnets", type=int, default=50)
    parser.add_argument("--train", type=int, default=0, metavar="EPOCHS", help="of both SuperNets; default: none")
    parser.add_argument("--work", type=Path, metavar="DIR", help="networks; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        rows = []
        for name in options.networks:
            (work / name).mkdir(parents=True, exist_ok=True)
            rows += measure(name, options.subnets, options.train, work / name)
    _show(rows, markdown=options.markdown)
    for each in rows:
        bar = BAR_TRAINED_POINTS if each["epochs"] else BAR_POINTS
        if each["difference_points"] < -bar:
            print(f"{each['network']}, {each['epochs']} epochs: opened is more than {bar} points below unfolded")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
