"""A small network that has learnt faint patterns, images of these that drift, and models that follow them."""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import adaptive_runtime
import tailor_ir
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.weights import GuardSettings, WeightOptions
from tests.support.ir.networks import small_net
from tests.support.runtime.bundled import OBSERVED_IMAGES, SourceData, write_plain_bundle

PATTERNS = functional.interpolate(torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(7)), (16, 16))


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Faint patterns of five classes in noise, in [0, 1]: x (N, 3, 16, 16), labels (N,)."""
    generator = torch.Generator().manual_seed(seed)
    y_N = torch.randint(5, (count,), generator=generator)
    x_NCHW = 0.5 + 0.08 * (1.2 * PATTERNS[y_N] + torch.randn(count, 3, 16, 16, generator=generator))
    return x_NCHW.clamp(0, 1).numpy(), y_N.numpy()


def drifted(x_NCHW: np.ndarray) -> np.ndarray:
    """Brighter in two colours, darker in one, with less contrast."""
    colours = np.array([0.12, -0.08, 0.06], np.float32).reshape(3, 1, 1)
    return (0.5 + 0.4 * (x_NCHW - 0.5) + colours).astype(np.float32)


def write_adaptable_bundle(folder: Path) -> None:
    """The largest and the smallest SubNet of a network that has learnt the patterns."""
    torch.manual_seed(0)
    network = small_net(blocks=1).train()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(50):
        x_NCHW, y_N = map(torch.from_numpy, pictures(64, 1000 + step))
        optimiser.zero_grad()
        functional.cross_entropy(network(x_NCHW), y_N).backward()
        optimiser.step()
    net = tailor_ir.compile(network.eval(), torch.zeros(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    write_plain_bundle(net, [net.max_config, net.min_config], folder, source=SourceData(*pictures(64 + 256, 1)))


def followed(bundle: Path, **options: object) -> DeployedModel:
    """A model that follows its images, with options of weights."""
    given = {"waiting_images": 10_000, "guard": GuardSettings(judged_from=8), **options}
    return adaptive_runtime.load(bundle, prepares=False, weights=WeightOptions.model_validate(given))


def error(model: DeployedModel, x_NCHW: np.ndarray, y_N: np.ndarray) -> float:
    """Of answers while the model looks at the images, 16 at once."""
    wrong = 0
    for start in range(0, len(x_NCHW), OBSERVED_IMAGES):
        part = slice(start, start + OBSERVED_IMAGES)
        wrong += int((model.infer(x_NCHW[part]).classes != y_N[part]).sum())
        assert model.weights is not None
        model.weights.wait()
    return wrong / len(x_NCHW)


def kinds(model: DeployedModel) -> list[str]:
    """What has happened to weights and images."""
    assert model.state.weights is not None
    return [event.kind for event in model.state.weights.events]


def serving_adapted(model: DeployedModel) -> bool:
    """Whether adapted weights serve."""
    assert model.state.weights is not None
    return model.state.weights.subnets[model.state.serving.digest].adapted
