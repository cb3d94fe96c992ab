"""A recurrent network in a file that keeps its state from frame to frame: scores of a run against those of whole streams.

    python -m benchmarks.own.streaming [--unroll 1 40]

Each SubNet runs over new streams in two ways, with its own states and with those of the given network.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import autotailor
import tailor_ir
from tasks.data.teacher import OnnxNetwork

FOLDER = Path("outputs/streaming")
FRAMES, STREAMS, F, S, CLASSES, RANDOM = 40, 100, 16, 64, 8, 10


class Recurrent(nn.Module):
    """Remembers which of some patterns it has seen last. (B, F), (B, S) -> (B, CLASSES), (B, S)."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(F, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.cell = nn.GRU(64, S)
        self.head = nn.Sequential(nn.Linear(S, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The answer to one frame, and the next state."""
        y, after = self.cell(self.before(x)[None], h[None])
        return self.head(y[0]), after[0]


def streams(count: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames (count, FRAMES, F) of noise with a pattern now and then, and the pattern seen last."""
    patterns = torch.randn(CLASSES, F, generator=torch.Generator().manual_seed(7))
    x, seen = 0.5 * torch.randn(count, FRAMES, F, generator=rng), torch.zeros(count, FRAMES, dtype=torch.long)
    now = torch.randint(CLASSES, (count,), generator=rng)
    for frame in range(FRAMES):
        begins = (torch.rand(count, generator=rng) < 0.08) | (frame == 0)
        now = torch.where(begins, torch.randint(CLASSES, (count,), generator=rng), now)
        x[:, frame] += 2 * begins[:, None] * patterns[now]
        seen[:, frame] = now
    return x, seen


def prepare(rng: torch.Generator) -> None:
    """The trained network in a file, and frames of streams one after the other."""
    torch.manual_seed(0)
    net = Recurrent()
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(400):
        x, seen = streams(64, rng)
        h, losses = torch.zeros(64, S), []
        for frame in range(FRAMES):
            y, h = net(x[:, frame], h)
            losses.append(functional.cross_entropy(y, seen[:, frame]))
        optimiser.zero_grad()
        torch.stack(losses).mean().backward()
        optimiser.step()
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = ["x", "h", "y", "hn"]
    torch.onnx.export(
        net.eval(), (torch.zeros(2, F), torch.zeros(2, S)), FOLDER / "net.onnx", input_names=names[:2],
        output_names=names[2:], dynamic_axes={name: {0: "batch"} for name in names}, dynamo=False,
    )  # fmt: skip
    np.savez(FOLDER / "frames.npz", x=streams(STREAMS, rng)[0].reshape(-1, F).numpy())


def agreement(module: nn.Module, given: OnnxNetwork, x: torch.Tensor, *, own: bool) -> float:
    """Share of frames with the class of the given network [%]. own: with the module's own states, else the given network's."""
    h = state = torch.zeros(len(x), S)
    equal = []
    for frame in range(FRAMES):
        wanted, following = given(x[:, frame], state)
        y, after = module(x[:, frame], h if own else state)
        h, state = after, following
        equal.append((y.argmax(1) == wanted.argmax(1)).float())
    return 100 * float(torch.stack(equal).mean())


def main() -> None:
    """A run for each length, and the SubNets on new streams."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unroll", type=int, nargs="+", default=[1, FRAMES])
    rng = torch.Generator().manual_seed(1)
    prepare(rng)
    new, given = streams(STREAMS, rng)[0], OnnxNetwork(FOLDER / "net.onnx")
    for unroll in parser.parse_args().unroll:
        options = [f"data.window={FRAMES}", f"data.unroll={unroll}", "finetune.epochs=20"]
        job = autotailor.Job(
            model=FOLDER / "net.onnx", data=FOLDER / "frames.npz", devices=["onnxruntime"], output_dir=FOLDER / "out",
            options=options,
        )  # fmt: skip
        stage = autotailor.finetune(job)
        net, draws = tailor_ir.load(stage.folder / "supernet"), np.random.default_rng(0)
        configs = [net.max_config, net.min_config, *(net.space.sample(draws) for _ in range(RANDOM))]
        with torch.no_grad():
            found = [[agreement(net.build(c).eval(), given, new, own=own) for own in (True, False)] for c in configs]
        told = {name: f"{100 * stage.result[f'{name}_test_fidelity']:.1f}" for name in ("largest", "smallest")}
        names = ("largest", "smallest", f"mean of {RANDOM} random ones")
        for name, rows in zip(names, (found[:1], found[1:2], found[2:]), strict=True):
            own, others = np.mean(rows, 0)
            print(
                f"unroll {unroll}, {name}: told {told.get(name, '–')}; own states {own:.1f}, given states {others:.1f}"
            )


if __name__ == "__main__":
    main()
