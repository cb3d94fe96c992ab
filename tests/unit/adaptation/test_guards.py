"""Guards: drift is noticed soon, seldom by mistake; what was adapted is kept while it helps, and undone when it was wrong."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from adaptive_runtime.weights import BalancedMemory, DriftDetector, GuardSettings
from adaptive_runtime.weights.guard import RUN_IMAGES, bets, judged
from tasks.adaptation import GUARDED_METHOD, AdaptiveSubnet, MethodSettings
from tasks.adaptation.guards import Anchor, AnchorJudge, GuardedSubnet, SourceProfile
from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits
from tasks.data.drift import LabelledImages, corrupt
from tests.support.ir.networks import small_net

PATTERNS = functional.interpolate(torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(7)), (32, 32))


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Faint patterns of five classes in noise: x_BCHW, y_B."""
    generator = torch.Generator().manual_seed(seed)
    y_B = torch.randint(5, (count,), generator=generator)
    return 0.6 * PATTERNS[y_B] + torch.randn(count, 3, 32, 32, generator=generator), y_B


def drifted(x_BCHW: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """Brighter in two colours, darker in one, with less contrast; less so with a share."""
    return (1 - 0.6 * share) * x_BCHW + share * torch.tensor([1.5, -1.0, 0.7]).reshape(3, 1, 1)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    network = small_net(8, 16).train()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(40):
        x_BCHW, y_B = pictures(64, 1000 + step)
        optimiser.zero_grad()
        functional.cross_entropy(network(x_BCHW), y_B).backward()
        optimiser.step()
    return network.eval()


@pytest.fixture
def source(trained: nn.Module) -> AdaptiveSubnet:
    return AdaptiveSubnet(copy.deepcopy(trained))


def guarded(source: AdaptiveSubnet, method: MethodSettings | None = None, **options: object) -> GuardedSubnet:
    anchor = Anchor(*pictures(128, 1))
    settings = GuardSettings.model_validate({"quiet_images": 100, **options})
    profile = [pictures(256, 2)[0]]
    return GuardedSubnet(source, anchor, profile, settings, *([method] if method else []))


def accuracy(guard: GuardedSubnet, stream: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> float:
    right = [guard.answer(x_BCHW).logits_BK.argmax(1) == y_B for x_BCHW, y_B in stream]
    return torch.cat(right).float().mean().item()


def batches(count: int, size: int, seed: int, drift: float) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """drift: its share."""
    for number in range(count):
        x_BCHW, y_B = pictures(size, seed + number)
        yield drifted(x_BCHW, drift), y_B


def test_bets_are_fair() -> None:
    edges = np.concatenate([[0.0], np.geomspace(1e-11, 0.5, 20_001)])
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    both = np.concatenate([middles, 1 - middles])
    assert bets(both).T @ np.tile(widths, 2) == pytest.approx(np.ones(6), abs=0.02)


def test_false_alarms_are_no_more_frequent_than_their_bound_for_any_distribution() -> None:
    rng = np.random.default_rng(0)
    alarms, runs, images = 0, 400, 30
    for run in range(runs):
        scores = np.round(rng.standard_cauchy((20 + images, 2)), 1)  # no moments, and ties
        detector = DriftDetector(scores[:20], false_alarms=1000.0, seed=run)
        alarms += any(detector.update(score) for score in scores[20:])
    bound = images / 100
    assert alarms / runs <= bound
    assert alarms / runs > bound / 30  # and the bound is not empty


def test_evidence_grows_by_one_an_image_on_average() -> None:
    """With so small powers left out, R̄ of few images has a variance that averages can beat."""
    rng = np.random.default_rng(1)
    values = []
    for run in range(3000):
        detector = DriftDetector(rng.standard_normal((10, 1)), false_alarms=1e-6, seed=run)
        for score in rng.standard_normal((3, 1)):
            detector.update(score)
        values.append(detector.evidence)
    assert np.mean(values) == pytest.approx(3, rel=0.25)


def test_drift_is_noticed_within_a_few_images() -> None:
    rng = np.random.default_rng(0)
    detector = DriftDetector(rng.standard_normal((500, 3)), false_alarms=1.0, seed=0)
    assert not any(detector.update(score) for score in rng.standard_normal((300, 3)))
    found = [detector.update(score + 4) for score in rng.standard_normal((20, 3))]
    assert any(found)
    assert detector.images < 20  # a run began


def test_a_run_ends_so_that_memory_is_bounded() -> None:
    detector = DriftDetector(np.zeros((4, 1)), false_alarms=1e-6, seed=0)
    for _ in range(RUN_IMAGES):
        detector.update(np.zeros(1))
    assert detector.images == 0


def test_a_profile_tells_drifted_images_and_leaves_the_source(source: AdaptiveSubnet) -> None:
    profile = SourceProfile(source, [pictures(256, 2)[0]])
    x_BCHW, _ = pictures(64, 3)
    logits_BK, usual = profile.look(x_BCHW)
    _, unusual = profile.look(drifted(x_BCHW))
    assert torch.equal(logits_BK, source(x_BCHW))
    assert profile.calibration_ND.shape == (128, 4)
    assert (unusual[:, [0, 1, 3]].min(0) > usual[:, [0, 1, 3]].max(0)).all()
    assert source.state() == {}


def test_impulse_noise_is_noticed_by_all_features_together_alone(source: AdaptiveSubnet) -> None:
    """Digits differ in contrast so much that no feature of noisy ones is unusual."""
    splits = load_splits(DataSettings(kind="digits", workers=1))
    held_out, test = (LabelledImages.of(splits[name]) for name in ("validation", "test"))
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    profile = SourceProfile(source, [held_out.normalised(held_out.x_MCHW[order])])
    x_BCHW = test.x_MCHW[order[:200]]
    noisy = corrupt(x_BCHW, "impulse_noise", 3, seed=0, places=range(200))

    def first_alarm(x_BCHW: torch.Tensor, statistics: int) -> int | None:
        _, scores = profile.look(test.normalised(x_BCHW))
        detector = DriftDetector(profile.calibration_ND[:, :statistics], false_alarms=1.0, seed=0)
        return next((place for place, score in enumerate(scores) if detector.update(score[:statistics])), None)

    assert first_alarm(noisy, 3) is None
    assert first_alarm(x_BCHW, 4) is None
    found = first_alarm(noisy, 4)
    assert found is not None
    assert found < 20


def test_too_few_source_images_are_one_clear_line(source: AdaptiveSubnet) -> None:
    with pytest.raises(UserError, match="source images: 8; allowed: 32 or more; give more images"):
        SourceProfile(source, [pictures(8, 2)[0]])
    with pytest.raises(UserError, match="labelled source images: 8; allowed: 32 or more"):
        AnchorJudge(source, Anchor(*pictures(8, 2)), GuardSettings())


def test_a_memory_is_balanced_recent_and_knows_no_image_twice() -> None:
    memory = BalancedMemory(capacity=8, oldest=30, redundancy=1e-3)
    images = np.random.default_rng(0).standard_normal((40, 3, 4, 4), np.float32)
    for number in range(20):
        assert memory.add(images[number], 0)
    for number in range(20, 24):
        assert memory.add(images[number], 1)
    assert np.array_equal(memory.batch(), images[16:24])
    assert not memory.add(images[23] * 1.001, 1)
    assert memory.add(images[24], 0)
    assert np.array_equal(memory.batch(), np.concatenate([images[17:20], images[24:25], images[20:24]]))
    for number in range(25, 40):
        memory.add(images[number], 0)
    for _ in range(30):
        memory.add(images[39], 0)
    assert np.array_equal(memory.batch(), images[39:40])


def test_nothing_adapts_while_nothing_drifts(source: AdaptiveSubnet) -> None:
    guard = guarded(source)
    before = {name: tensor.clone() for name, tensor in guard.adapted.network.state_dict().items()}
    for x_BCHW, _ in batches(10, 32, 5000, drift=False):
        answer = guard.answer(x_BCHW)
        assert answer.by == "source"
        assert torch.equal(answer.logits_BK, source(x_BCHW))
    assert not guard.events
    after = guard.adapted.network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert source.state() == guard.adapted.state() == {}


@pytest.mark.few("16")
@pytest.mark.parametrize("size", [1, 16])
def test_drift_is_corrected_and_the_source_comes_back_after_it(source: AdaptiveSubnet, size: int) -> None:
    guard = guarded(source)
    steps = 160 // size
    clean = accuracy(guard, batches(32 // size, size, 6000, drift=False))
    accuracy(guard, batches(steps, size, 7000, drift=True))
    corrected = accuracy(guard, batches(steps, size, 8000, drift=True))
    with torch.no_grad():
        left_alone = (
            torch.cat([source(x).argmax(1) == y for x, y in batches(steps, size, 8000, drift=True)]).float().mean()
        )
    assert clean > 0.9
    assert left_alone < 0.5
    assert corrected > clean - 0.1
    assert [guard.events[0].kind, guard.events[1].kind] == ["drift", "aligned"]
    assert guard.events[1].image - guard.events[0].image <= size  # at the alarm
    assert 32 <= guard.events[0].image < 32 + 20
    assert guard.adapted.state()
    accuracy(guard, batches(steps, size, 9000, drift=False))
    assert guard.events[-1].kind == "over"
    assert guard.events[-1].image < 352 + 64
    assert not guard.drifting
    x_BCHW, _ = pictures(32, 1)
    assert guard.adapted.state() == {}
    assert torch.equal(guard.answer(x_BCHW).logits_BK, source(x_BCHW))


def test_a_method_that_aligns_no_images_learns_first(source: AdaptiveSubnet) -> None:
    plain = GUARDED_METHOD.model_copy(update={"input_deviations": None, "learning_rate": 3e-3})
    guard = guarded(source, plain)
    accuracy(guard, batches(12, 16, 7000, drift=0.3))  # a whole one is too much for three batches
    kinds = [event.kind for event in guard.events]
    assert kinds[0] == "drift"
    assert set(kinds[1:]) <= {"kept", "undone"}
    assert "kept" in kinds
    assert guard.answering is guard.adapted
    assert guard.adapted.alignment is None


def test_what_was_adapted_wrongly_is_undone(source: AdaptiveSubnet) -> None:
    """Tent with steps far too long puts all images into one class; the source goes on answering."""
    guard = guarded(source, MethodSettings(method="tent", learning_rate=1.0))
    for x_BCHW, _ in batches(8, 32, 7000, drift=True):
        answer = guard.answer(x_BCHW)
        assert answer.by == "source"
        assert torch.equal(answer.logits_BK, source(x_BCHW))
    kinds = [event.kind for event in guard.events]
    assert kinds[0] == "drift"
    assert set(kinds[1:]) == {"undone"}
    assert source.state() == {}


def test_a_verdict_names_why_adapted_weights_go(source: AdaptiveSubnet) -> None:
    anchor = Anchor(*pictures(128, 1))
    judge = AnchorJudge(source, anchor, GuardSettings())
    x_BCHW, _ = pictures(64, 4)
    with torch.no_grad():
        logits_BK = source(x_BCHW)
        adapted = copy.deepcopy(source)
        same = judge.verdict(adapted, x_BCHW, logits_BK)
        assert same.kept
        assert same.expected_of_source == same.expected_of_adapted
        assert same.expected_of_source == pytest.approx(0.95, abs=0.1)
        unsure = logits_BK + torch.tensor([3.0, 0, 0, 0, 0])
        assert not judge.verdict(adapted, drifted(x_BCHW), unsure).kept
        adapted.norms[next(iter(adapted.norms))].weight.fill_(0.0)
        broken = judge.verdict(adapted, x_BCHW, logits_BK)
    assert not broken.kept
    assert "points on source images" in broken.reason


def test_a_verdict_tells_expectations_between_none_and_all() -> None:
    sure_BK = np.eye(4, dtype=np.float32) * 40
    found = judged(-sure_BK, -0.5, sure_BK, 0.25)
    assert found.kept
    assert found.expected_of_adapted > 1
    assert found.reason == "100 % right answers are expected, 0 % of the source"
