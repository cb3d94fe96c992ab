"""Fidelity: kinds of outputs, scores and losses, on answers that are known."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tasks.base.errors import UserError
from tasks.data.problems import FIDELITY
from tasks.data.problems.comparisons import edit_distance, kind_of, scores_of_output
from tasks.data.problems.fidelity import Fidelity

DRAW = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW)


def logits(samples: int, classes: int) -> torch.Tensor:
    """Centred vectors, as the gradients of a softmax leave them."""
    drawn = 4 * normal(samples, classes)
    return drawn - drawn.mean(1, keepdim=True)


def boxes(samples: int) -> torch.Tensor:
    """(B, 4 + 3, 40): boxes in pixels, and probabilities of three classes."""
    places = 300 * torch.rand(samples, 2, 40, generator=DRAW)
    sizes = 5 + 50 * torch.rand(samples, 2, 40, generator=DRAW)
    return torch.cat([places, sizes, torch.sigmoid(3 * normal(samples, 3, 40) - 3)], 1)


KINDS = {
    "logits": (logits(64, 100), "classes"),
    "few logits": (logits(64, 10), "classes"),
    "logits of two classes": (logits(64, 2), "classes"),
    "key points": (torch.rand(64, 10, generator=DRAW), "values"),
    "key points in pixels": (96 * torch.rand(64, 10, generator=DRAW), "values"),
    "grades": (3 + normal(64, 3), "values"),
    "probabilities": (normal(64, 50).softmax(1), "classes"),
    "embedding": (normal(64, 256), "embedding"),
    "unit vectors": (functional.normalize(normal(64, 8)), "embedding"),
    "one number": (normal(64, 1), "values"),
    "maps": (normal(8, 3, 6, 5), "values"),
    "probabilities of pixels": (normal(8, 3, 6, 5).softmax(1), "classes"),
    "probabilities of events": (torch.sigmoid(4 * normal(64, 1)), "values"),
    "maps of probabilities": (torch.sigmoid(4 * normal(8, 1, 6, 5)), "values"),
    "boxes": (boxes(16), "boxes"),
    "probabilities of symbols": (normal(8, 12, 9).softmax(2), "sequence"),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_follows_from_the_answers_and_equal_answers_score_1(name: str) -> None:
    taught, kind = KINDS[name]
    assert kind_of(taught) == kind
    assert scores_of_output(kind, taught, taught).tolist() == pytest.approx([1.0] * len(taught))
    problem = Fidelity()
    problem.find_kinds(taught)
    assert float(problem.loss(taught, taught, 0.0)) == pytest.approx(0, abs=1e-5)
    other = torch.roll(taught, 1, 0)
    assert float(problem.loss(other, taught, 0.0)) > 1e-3
    assert float(scores_of_output(kind, other, taught).mean()) < 0.9


def test_the_loss_leads_to_the_answers() -> None:
    for taught, _ in KINDS.values():
        problem = Fidelity()
        problem.find_kinds(taught)
        found = (0.5 * taught + 0.5 * taught.roll(1, 0)).clone().requires_grad_()
        before = problem.loss(found, taught, 0.0)
        (slope,) = torch.autograd.grad(before, found)
        assert float(slope.abs().sum()) > 0
        with torch.no_grad():
            after = problem.loss(found - 0.001 * slope / slope.norm() * taught.norm(), taught, 0.0)
        assert float(after) < float(before.detach())


def test_several_outputs_score_their_mean() -> None:
    classes, embedding = logits(40, 20), functional.normalize(normal(40, 12))
    problem = Fidelity()
    tally = problem.tally()
    tally.add((classes, embedding.roll(1, 0)), (classes, embedding))
    expected = (1 + functional.cosine_similarity(embedding.roll(1, 0), embedding).clamp_min(0)) / 2
    found = tally.found()
    assert found.score == pytest.approx(float(expected.mean()), abs=1e-6)
    assert len(found.each_N) == 40


def test_options_name_kinds() -> None:
    problem = Fidelity({"a": "values", "b": None})
    assert problem.find_kinds((logits(8, 10), logits(8, 10))) == ("values", "classes")
    with pytest.raises(UserError, match=r"problem.outputs.*2 outputs; allowed: 1"):
        Fidelity({"a": "values", "b": None}).find_kinds(normal(8, 10))


def test_without_a_teacher_every_answer_is_right() -> None:
    tally = FIDELITY.tally()
    tally.add(normal(5, 3), torch.zeros(5, 0))
    assert tally.found().score == 1.0


def test_maps_of_another_size_are_compared_at_the_size_of_the_teacher() -> None:
    smooth = functional.interpolate(normal(4, 2, 3, 3), (12, 12), mode="bilinear")
    smaller = functional.interpolate(smooth, (6, 6), mode="bilinear", antialias=True)
    assert float(scores_of_output("values", smaller, smooth).mean()) > 0.9


@given(st.text("abc", max_size=7), st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_edit_distance_is_a_metric(first: str, second: str, third: str) -> None:
    codes = [[ord(letter) for letter in text] for text in (first, second, third)]
    distance = edit_distance(codes[0], codes[1])
    assert distance == edit_distance(codes[1], codes[0])
    assert (distance == 0) == (first == second)
    assert abs(len(first) - len(second)) <= distance <= max(len(first), len(second))
    assert distance <= edit_distance(codes[0], codes[2]) + edit_distance(codes[2], codes[1])


@pytest.mark.parametrize(
    ("first", "second", "expected"), [("kitten", "sitting", 3), ("", "abc", 3), ("flaw", "lawn", 2)]
)
def test_known_distances(first: str, second: str, expected: int) -> None:
    assert edit_distance([*map(ord, first)], [*map(ord, second)]) == expected


def test_a_box_is_equal_with_its_class_and_half_its_place() -> None:
    taught = torch.zeros(3, 6, 8)
    taught[:, :4, 0] = torch.tensor([50.0, 50.0, 20.0, 20.0])
    taught[:, :4, 1] = torch.tensor([50.0, 52.0, 20.0, 20.0])  # a copy, which is less likely
    taught[:2, 4, 0], taught[:2, 4, 1] = 0.9, 0.8
    moved = taught.clone()
    moved[0, 0, :2] += 5
    moved[1, 4:] = moved[1, 4:].flip(0)
    assert scores_of_output("boxes", moved, taught).tolist() == [1.0, 0.0, 1.0]
    moved[0, 0, :2] += 15
    assert float(scores_of_output("boxes", moved, taught)[0]) == 0.0


@pytest.mark.parametrize("kind", ["classes", "sequence", "values"])
def test_probabilities_that_are_sure_of_a_wrong_answer_still_learn(kind: str) -> None:
    raw = torch.full((1, 1, 2) if kind == "sequence" else (1, 2), -14.0)
    raw[..., 0] = 14.0
    end = torch.sigmoid if kind == "values" else (lambda raw: raw.softmax(-1))
    wrong, problem = (-raw).requires_grad_(), Fidelity({"output": kind})
    problem.find_kinds(end(raw))
    (slope,) = torch.autograd.grad(problem.loss(end(wrong), end(raw), 0.0), wrong)
    assert float(slope.abs().amin()) > 0.1
