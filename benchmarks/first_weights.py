"""First weights of alternatives, before any training: from data, from weights alone, of the first channels, and random.

    python -m benchmarks.first_weights [--networks resnet26 mobilenetv2] [--images 256] [--work DIR] [--json FILE] [--markdown]

Networks learn ten characters of glyphs as `autotailor compile` does it. Each alternative by itself stands in the place of its
blocks, everything else is the original, and BatchNorm statistics are taken anew; loss and accuracy on the images for testing.
Four versions of all alternatives: *data* (`SuperNet.fit_alternatives` with `--images` training images), *weights* (those of
`compile` without images: truncated decompositions, important channels), *first* (every tensor is the leading part of the one
that it stands for), *random* (He's initialisation). At the end `low_rank_0.5` at all blocks at once. DIR keeps the networks.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import nn

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.int8 import COMMON, NETWORKS
from benchmarks.tables import show
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tailor_ir import Config, SuperNet
from tailor_ir.subnets.elastic import Branch, Branches
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.training.compile import fit_alternatives

VERSIONS = ("data", "weights", "first", "random")
HALF = "low_rank_0.5"
SEED = 0


class Row(TypedDict):
    """A choice over all blocks that have it. losses, accuracies: means by version; lost: what the original does not have."""

    network: str
    choice: str
    blocks: int
    losses: dict[str, float]
    accuracies: dict[str, float]
    original_loss: float
    original_accuracy: float


def compiled(name: str, output: Path) -> tuple[SuperNet, DataSettings]:
    """A trained network with all alternatives, their first weights from weights alone."""
    own = [each for each in NETWORKS[name] if not each.startswith("finetune")]
    common = [each for each in COMMON if not each.startswith(("space", "finetune"))]
    overrides = [*common, *own, "+space.alternatives=auto", "compile.alternative_images=0"]
    config = validate(RunConfig, compose_config("config", overrides))
    output.mkdir(parents=True, exist_ok=True)
    told = output / "compiled.json"
    command = [sys.executable, "-m", "flows.cli", "compile", f"output_dir={output.resolve()}", *overrides]
    subprocess.run([*command, "--json", str(told)], check=True)
    (stage,) = json.loads(told.read_text())["stages"]
    return tailor_ir.load(Path(stage["folder"]) / "supernet"), config.data


def write_first(net: SuperNet, branch: Branch) -> None:
    """Every tensor of an alternative becomes the leading part of the tensor that it stands for."""
    prefix = f"{branch.exit}/{branch.choice}/"
    graph = net.structure.graph
    nodes = {node.name: node for node in graph.original().nodes}
    for name in branch.parameters:
        rest = name.removeprefix(prefix)
        if rest not in graph.parameters:
            node = nodes.get(rest.removesuffix(".weight").rpartition("/")[0]) or nodes.get(rest.removesuffix(".weight"))
            if node is None or not rest.endswith(".weight"):
                continue
            rest = node.inputs[1]
        tensor = net.elastic.tensor(name)
        tensor.copy_(leading(net.elastic.tensor(rest), tensor.shape))


def leading(source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The leading channels of a tensor and the middle of its kernel; repeated or padded where there are too few."""
    for dim, size in enumerate(shape):
        have = source.shape[dim]
        if dim < 2:
            source = source.index_select(dim, torch.arange(size) % have)
        elif have >= size:
            source = source.narrow(dim, (have - size) // 2, size)
        else:
            edge = (size - have) // 2
            source = nn.functional.pad(source, [0, 0] * (source.ndim - 1 - dim) + [edge, edge])
    return source


def write_random(net: SuperNet, branch: Branch, generator: torch.Generator) -> None:
    """He's initialisation; BatchNorms as they begin."""
    for name in branch.parameters:
        tensor = net.elastic.tensor(name)
        if tensor.ndim > 1:
            nn.init.kaiming_normal_(tensor, nonlinearity="relu", generator=generator)
        else:
            tensor.zero_()
    for norm in branch.norms:
        scale = next(each for each in branch.instructions if each.module is norm).operands[1]
        net.elastic.tensor(scale).fill_(1)


@torch.no_grad()
def versions(net: SuperNet, data: DataSettings, images: int) -> Iterator[str]:
    """The network with each version of its alternatives, in turn."""
    branches = Branches(net.elastic).branches
    written = {name: net.elastic.tensor(name).clone() for branch in branches for name in branch.parameters}
    yield "weights"
    fit_alternatives(net, data, images, Silent())
    yield "data"
    for name, tensor in written.items():
        net.elastic.tensor(name).copy_(tensor)
    for branch in branches:
        write_first(net, branch)
    yield "first"
    generator = torch.Generator().manual_seed(SEED)
    for branch in branches:
        write_random(net, branch, generator)
    yield "random"


def measure(name: str, images: int, work: Path) -> list[Row]:
    """A row for each choice, and one for low rank everywhere."""
    net, settings = compiled(name, work / name)
    splits = load_splits(settings)
    data = EvaluationData(splits["test"], splits["train"])
    singles: list[Config] = [{branch.variable: branch.choice} for branch in Branches(net.elastic).branches]
    everywhere: Config = {
        variable.name: HALF for variable in net.space.variables if variable.kind == "block" and HALF in variable.choices
    }
    configs: list[Config] = [{}, *singles, everywhere]
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for version in versions(net, settings, images):
            told = accuracies(net, configs, data, Path(folder) / f"{version}.jsonl", Terminal(), f"{name}, {version}")
            found[version] = [(each.loss, each.share) for each in told]
    labels = [*(str(next(iter(config.values()))) for config in singles), f"{HALF} everywhere"]
    return [_row(name, choice, labels, found) for choice in dict.fromkeys(labels)]


def _row(name: str, choice: str, labels: Sequence[str], found: Mapping[str, Sequence[tuple[float, float]]]) -> Row:
    at = [1 + index for index, label in enumerate(labels) if label == choice]
    means = {version: np.mean([found[version][index] for index in at], axis=0).tolist() for version in VERSIONS}
    loss, share = found["weights"][0]
    return {
        "network": name,
        "choice": choice,
        "blocks": len(at),
        "losses": {version: mean[0] for version, mean in means.items()},
        "accuracies": {version: mean[1] for version, mean in means.items()},
        "original_loss": loss,
        "original_accuracy": share,
    }


def _show(rows: Sequence[Row], *, markdown: bool) -> None:
    heads = (
        "network",
        "choice",
        "blocks",
        *(f"loss more, {v}" for v in VERSIONS),
        *(f"points lost, {v}" for v in VERSIONS),
    )
    cells = [
        (
            row["network"],
            row["choice"],
            str(row["blocks"]),
            *(f"{row['losses'][version] - row['original_loss']:.3f}" for version in VERSIONS),
            *(f"{100 * (row['original_accuracy'] - row['accuracies'][version]):.1f}" for version in VERSIONS),
        )
        for row in rows
    ]
    show(heads, cells, markdown=markdown, width=180)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--work", type=Path, metavar="DIR", help="networks; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        rows = [row for name in options.networks for row in measure(name, options.images, work)]
    _show(rows, markdown=options.markdown)
    for row in rows:
        losses = row["losses"]
        worst = min(losses[version] for version in ("first", "random"))
        if losses["data"] >= worst:
            print(f"{row['network']}, {row['choice']}: data do not beat the first channels or random weights")
        if row["choice"].startswith(HALF):
            ratio = (losses["data"] - row["original_loss"]) / (losses["weights"] - row["original_loss"])
            print(
                f"{row['network']}, {row['choice']}: data lose {ratio:.2f} of what plain decompositions lose (limit: 0.5)"
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
