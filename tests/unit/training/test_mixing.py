"""Mixup and CutMix: soft labels that tell the truth, decided by seed, step and micro-batch alone."""

import pytest
import torch
from torch.nn import functional

from tasks.training.finetune.settings import Mixing, mix

CLASSES = 8
KEY = (3, 17, 1)


def batch(size: int = CLASSES, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose channel k is 1 where a pixel is of class k: the mean over pixels is the true soft label."""
    y_B = torch.arange(size) % CLASSES
    x_BK = functional.one_hot(y_B, CLASSES).to(dtype)
    return x_BK[:, :, None, None].expand(-1, -1, 16, 16).clone(), y_B


def mixed(settings: Mixing, key: tuple[int, int, int] = KEY) -> tuple[torch.Tensor, torch.Tensor]:
    return mix(*batch(), settings, CLASSES, key)


def test_nothing_is_mixed_by_default() -> None:
    x_BCHW, y_B = batch()
    same_BCHW, soft_BK = mix(x_BCHW, y_B, Mixing(), CLASSES, KEY)
    assert same_BCHW is x_BCHW
    assert torch.equal(soft_BK, functional.one_hot(y_B, CLASSES).float())


@pytest.mark.parametrize("settings", [Mixing(mixup_alpha=0.8), Mixing(cutmix_alpha=1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_soft_labels_are_the_shares_of_the_classes_in_the_image(settings: Mixing, dtype: torch.dtype) -> None:
    for step in range(20):
        x_BCHW, y_B = batch(dtype=dtype)
        mixed_BCHW, soft_BK = mix(x_BCHW, y_B, settings, CLASSES, (0, step, 0))
        assert mixed_BCHW.dtype == soft_BK.dtype == dtype
        assert torch.allclose(mixed_BCHW.mean((2, 3)), soft_BK, rtol=0, atol=1e-6)
        assert torch.equal(x_BCHW, batch(dtype=dtype)[0])


def test_mixup_blends_and_cutmix_pastes() -> None:
    blended, pasted = mixed(Mixing(mixup_alpha=1.0))[0], mixed(Mixing(cutmix_alpha=1.0))[0]
    assert ((blended > 0.01) & (blended < 0.99)).any()
    assert set(pasted.unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(pasted, batch()[0])


def test_the_key_alone_decides_and_the_global_random_state_stays() -> None:
    settings = Mixing(mixup_alpha=1.0, cutmix_alpha=1.0)
    torch.manual_seed(1)
    first = mixed(settings)
    after = torch.rand(4)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(4), after)
    assert torch.equal(mixed(settings)[0], first[0])
    for other in ((4, 17, 1), (3, 18, 1), (3, 17, 2)):
        assert not torch.equal(mixed(settings, other)[0], first[0])


def test_both_ways_take_turns_and_some_micro_batches_are_left_alone() -> None:
    settings = Mixing(mixup_alpha=1.0, cutmix_alpha=1.0, probability=0.5)
    ways = {"left": 0, "cutmix": 0, "mixup": 0}
    for step in range(200):
        x_BCHW, _ = mixed(settings, (0, step, 0))
        is_whole = set(x_BCHW.unique().tolist()) == {0.0, 1.0}
        ways["left" if torch.equal(x_BCHW, batch()[0]) else "cutmix" if is_whole else "mixup"] += 1
    assert 80 < ways["left"] < 125
    assert min(ways["cutmix"], ways["mixup"]) > 30


def test_soft_labels_train_like_the_labels_they_are_made_of() -> None:
    x_BCHW, y_B = batch()
    logits_BK = torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(0))
    _, soft_BK = mix(x_BCHW, y_B, Mixing(), CLASSES, KEY)
    hard = functional.cross_entropy(logits_BK, y_B, label_smoothing=0.1)
    assert torch.allclose(functional.cross_entropy(logits_BK, soft_BK, label_smoothing=0.1), hard, rtol=1e-6, atol=0)
