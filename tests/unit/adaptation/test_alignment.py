"""Light, contrast and details of single images are brought back, usual images stay."""

from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive_runtime.weights import DEVIATIONS, ImageAlignment
from tailor_ir import InputAlignment, InputError
from tasks.adaptation import AdaptiveSubnet, MethodSettings, load_adapted, make_method, save_adapted
from tests.support.adaptation.small_subnets import batches, smallest, supernet


def lit(count: int, seed: int) -> torch.Tensor:
    """Images (B, 3, 16, 16) whose light and contrast differ a little."""
    generator = torch.Generator().manual_seed(seed)
    light, contrast = torch.randn(2, count, 3, 1, 1, generator=generator)
    return (1 + 0.1 * contrast) * torch.randn(count, 3, 16, 16, generator=generator) + 0.2 * light


def test_usual_images_stay_bit_by_bit() -> None:
    alignment = InputAlignment.of([lit(64, 0), lit(64, 1)], deviations=5.0)
    assert torch.equal(alignment(lit(32, 2)), lit(32, 2))


def test_light_and_contrast_are_brought_back_for_each_image_alone() -> None:
    alignment = InputAlignment.of([lit(256, 0)], deviations=0.0)
    x_BCHW = lit(32, 1)
    darker = 0.15 * x_BCHW - torch.tensor([1.0, 0.0, -2.0]).reshape(3, 1, 1)
    torch.testing.assert_close(alignment(darker), alignment(x_BCHW), rtol=1e-4, atol=1e-4)
    together = torch.cat([darker[:1], x_BCHW[1:]])
    torch.testing.assert_close(alignment(together)[:1], alignment(darker[:1]), rtol=0, atol=0)
    found = alignment(darker)
    assert found.mean((2, 3)).std(0).max() < 2e-3  # details have a mean, at the edges
    assert found.std((2, 3)).mean().item() == pytest.approx(1, abs=0.02)


def smoothed(x_BCHW: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(x_BCHW, 3, 1, 1, count_include_pad=False)


def details(x_BCHW: torch.Tensor) -> torch.Tensor:
    """Their logarithm (B, C)."""
    return (x_BCHW - smoothed(x_BCHW)).std((2, 3)).log()


@pytest.mark.parametrize("drift", ["blur", "noise"])
def test_details_are_brought_back(drift: str) -> None:
    generator = torch.Generator().manual_seed(0)
    images = smoothed(torch.randn(288, 3, 16, 16, generator=generator))
    alignment = InputAlignment.of([images[:256]], deviations=1.0)
    clean = images[256:]
    drifted = smoothed(clean) if drift == "blur" else clean + torch.randn(clean.shape, generator=generator)
    slack_C = alignment.log_spread_SC[0]
    before, after = (((details(x) - alignment.log_SC[0]).abs() - slack_C).max() for x in (drifted, alignment(drifted)))
    assert before > 0.5
    assert after < before / 2  # what is coarser has details, too
    if drift == "noise":
        noise, left = ((x - clean).square().mean().item() for x in (drifted, alignment(drifted)))
        assert left < 0.5 * noise


def test_a_side_file_of_an_earlier_version_aligns_whole_contrast() -> None:
    generator = torch.Generator().manual_seed(0)
    x_BCHW = torch.randn(4, 3, 16, 16, generator=generator)
    whole = {"deviations": torch.tensor(1.0), "mean_C": torch.zeros(3), "mean_spread_C": torch.full((3,), 9.0)}
    whole |= {"log_C": torch.zeros(3), "log_spread_C": torch.full((3,), 0.01)}
    alignment = InputAlignment.of_tensors({f"input.{name}": tensor for name, tensor in whole.items()})
    assert alignment is not None
    mean = (5 * x_BCHW).mean((2, 3), keepdim=True)
    deviation = (5 * x_BCHW).var((2, 3), keepdim=True).sqrt()
    expected = mean + (5 * x_BCHW - mean) / deviation * np.exp(0.01)
    torch.testing.assert_close(alignment(5 * x_BCHW), expected, rtol=1e-4, atol=1e-4)


def test_an_unusual_image_goes_to_the_edge_of_what_is_usual() -> None:
    alignment = InputAlignment.of([lit(256, 0)], deviations=2.0)
    mean_BC = alignment(lit(8, 1) + 5.0).mean((2, 3))
    edge_C = alignment.mean_C + 2 * alignment.mean_spread_C
    torch.testing.assert_close(mean_BC, edge_C.expand(8, 3), rtol=0, atol=5e-3)


def test_an_image_of_one_colour_goes_to_the_edge_of_what_is_usual() -> None:
    alignment = InputAlignment.of([lit(256, 0)], deviations=2.0)
    found = alignment(torch.full((1, 3, 16, 16), 1.5))
    edge_C = alignment.mean_C + 2 * alignment.mean_spread_C
    torch.testing.assert_close(found, edge_C[:, None, None].expand_as(found), rtol=0, atol=1e-4)


def test_what_is_usual_takes_images() -> None:
    with pytest.raises(InputError, match="source images: 1; allowed: 2 or more"):
        InputAlignment.of([lit(1, 0)], 1.0)


@pytest.mark.parametrize("shift", [0.0, 2.0, -3.0])
def test_the_device_aligns_as_torch_does(shift: float) -> None:
    usual = lit(256, 0)
    alignment, on_device = InputAlignment.of(usual.split(64), DEVIATIONS), ImageAlignment.of(usual.numpy())
    scales = torch.stack([alignment.log_SC, alignment.log_spread_SC], 1).flatten(0, 1)
    told = torch.cat([torch.stack([alignment.mean_C, alignment.mean_spread_C]), scales])
    assert np.abs(on_device.usual_UC - told.numpy()).max() <= 1e-6
    x_BCHW = (0.3 if shift else 1.0) * lit(32, 1) + shift
    expected = alignment(x_BCHW).numpy()
    assert np.abs(on_device(x_BCHW.numpy()) - expected).max() <= 1e-6 * np.abs(expected).max()
    assert not torch.equal(alignment(x_BCHW), x_BCHW)


def test_usual_images_stay_bit_by_bit_on_the_device_beside_unusual_ones() -> None:
    alignment = ImageAlignment.of(lit(64, 0).numpy(), deviations=5.0)
    x_BCHW = lit(32, 2).numpy()
    assert np.array_equal(alignment(x_BCHW), x_BCHW)
    x_BCHW[7] += 9
    found = alignment(x_BCHW)
    changed_B = (found != x_BCHW).any((1, 2, 3))
    assert np.flatnonzero(changed_B).tolist() == [7]


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_a_side_file_has_what_is_usual(kind: str, tmp_path: Path) -> None:
    net = supernet(kind)
    config = smallest(net)
    subnet = AdaptiveSubnet.of(net, config)
    settings = MethodSettings(method="tent", learning_rate=0.01, input_deviations=1.0)
    make_method(subnet, settings, batches(2)).adapt(batches(1, shift=1.0)[0])
    save_adapted(tmp_path / "adapted.safetensors", subnet, net, config)
    other = AdaptiveSubnet.of(net, config)
    load_adapted(tmp_path / "adapted.safetensors", other, net, config)
    x_BCHW = batches(1, shift=2.0, seed=5)[0]
    assert torch.equal(other(x_BCHW), subnet(x_BCHW))
    subnet.alignment = None
    assert not torch.equal(other(x_BCHW), subnet(x_BCHW))
