"""What the stage of exits puts together: which SubNets, what their exits cost, and who leaves where."""

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tailor_ir
from adaptive_runtime.exits import MEASURES, Decider, Thresholds
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.exits import HeldOut, PromiseSettings, calibrate
from tasks.exits.calibration import Leaving, classes_leaving, outcome_of
from tasks.exits.latency import ExitTimes, exits_of, passing_subnets, with_exit
from tasks.exits.settings import Settings
from tasks.exits.stage import PolicyDevice, _unfit, answers_of, png, write_pictures
from tests.support import examples
from tests.support.exits.exit_answers import LATENCY_MS, drawn_held_out

TIMES = ExitTimes(alone_ms_E=np.array([1.0, 1.8, 3.5]), passed_ms_E=np.array([0.2, 0.3, 0.0]))


@pytest.fixture(scope="module")
def net() -> SuperNet:
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10).eval()
    return tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), {"exits": "auto", "stage.2.width_mult": [0.5, 1.0]})


def front_of(net: SuperNet, *configs: dict[str, Any]) -> Any:
    rows = [SimpleNamespace(config=net.space.canonical(one), accuracy=place) for place, one in enumerate(configs)]
    return SimpleNamespace(winners=rows)


def test_winners_that_run_as_a_whole_are_taken_the_most_accurate_first(net: SuperNet) -> None:
    small = {"stage.2.width_mult": 0.5}
    front = front_of(net, {"exit": exits_of(net.space)[0]}, small, {}, {})
    assert passing_subnets(net, front, 5) == [net.max_config, net.space.canonical(small)]
    assert passing_subnets(net, front, 1) == [net.max_config]
    assert passing_subnets(net, front, 0) == []


def test_where_no_winner_runs_as_a_whole_those_that_pass_an_exit_are_taken(net: SuperNet) -> None:
    first, second, *_ = exits_of(net.space)
    (found,) = passing_subnets(net, front_of(net, {"exit": first}, {"exit": second}), 3)
    assert found == with_exit(net.space, net.max_config, second)
    assert passing_subnets(net, front_of(net, {"exit": first}), 3) == []


def test_heads_and_runs_on_the_way_are_counted() -> None:
    assert TIMES.latency_ms_E.tolist() == pytest.approx([1.0, 2.0, 4.0])
    assert TIMES.whole_ms == 3.5
    one = TIMES.of_chain(Thresholds(measure="margin", thresholds=(None, 0.5)))
    assert one.latency_ms_E.tolist() == pytest.approx([1.0, 1.8, 3.8])
    all_heads = TIMES.of_chain(Thresholds(measure="ensemble", thresholds=(None, 0.5)))
    assert all_heads.latency_ms_E.tolist() == pytest.approx([1.0, 2.0, 4.0])
    segments_mj = TIMES.segments_mj(np.array([1.0, 1.8, 3.5]))
    assert np.cumsum(segments_mj).tolist() == pytest.approx([1.0, 2.0, 4.0])


def test_answers_of_exits_in_one_pass_are_those_of_the_subnets_alone(net: SuperNet, tmp_path: Path) -> None:
    splits = load_splits(DataSettings(kind="digits", workers=1))
    data = EvaluationData(splits["validation"], splits["train"], limit=90, recalibration_images=64)
    upto = [with_exit(net.space, net.max_config, name) for name in exits_of(net.space)]
    logits_NEK, labels_N = answers_of(net, upto, data, Silent())
    assert logits_NEK.shape == (90, len(upto), 10)
    alone = accuracies(net, upto, data, tmp_path / "lines.jsonl", Silent())
    right_NE = logits_NEK.argmax(2) == labels_N[:, None]
    for place, one in enumerate(alone):
        assert (right_NE[:, place] == one.right).all()


@settings(deadline=None, max_examples=examples(20))
@given(
    measure=st.sampled_from(sorted(MEASURES)),
    bars=st.lists(st.one_of(st.none(), st.floats(0.2, 1.0)), min_size=0, max_size=2),
    seed=st.integers(0, 5),
)
def test_images_leave_where_the_device_lets_them_leave(measure: Any, bars: list[float | None], seed: int) -> None:
    images = drawn_held_out(seed, 60)
    thresholds = Thresholds(measure=measure, thresholds=tuple(bars))
    leaving = Leaving.of(thresholds, images)
    batch = Decider(thresholds).batch(len(images))
    for place in range(len(bars) + 1):
        batch.leave(images.logits_NEK[batch.rows, place])
    assert (leaving.taken_N == batch.exits).all()
    assert (leaving.answers_N == batch.answers).all()
    assert leaving.rates(3).sum() == pytest.approx(1)


def test_what_thresholds_come_to_is_counted_on_other_images() -> None:
    found = calibrate(drawn_held_out(2, 1500), PromiseSettings(epsilon=0.03), np.random.default_rng(0))
    images = drawn_held_out(1, 4000)
    leaving = Leaving.of(found.thresholds, images)
    tested = outcome_of(leaving, TIMES, np.array([1.0, 2.0, 5.0]))
    assert tested.expected_ms == pytest.approx(TIMES.latency_ms_E[leaving.taken_N].mean())
    assert tested.saved == pytest.approx(1 - tested.expected_ms / 3.5)
    assert tested.lost_points == pytest.approx(100 * (leaving.full_right_N.mean() - leaving.right_N.mean()))
    assert tested.lost_points < 3
    assert tested.expected_mj is not None
    assert tested.expected_mj < 5.0
    assert tested.p90_ms <= tested.p99_ms <= TIMES.latency_ms_E[-1]


def test_the_first_and_last_images_and_classes_are_those_that_leave_first_and_last() -> None:
    images = drawn_held_out(2, 500)
    leaving = Leaving.of(Thresholds(measure="top_probability", thresholds=(0.9, 0.9)), images)
    first, last = leaving.earliest(5), leaving.latest(5)
    assert set(leaving.taken_N[first]) == {0}
    assert set(leaving.taken_N[last]) == {2}
    assert leaving.confidences_N[first].min() >= np.sort(leaving.confidences_N[leaving.taken_N == 0])[-5]
    assert leaving.confidences_N[last].max() <= np.sort(leaving.confidences_N[leaving.taken_N == 2])[4]
    rows = classes_leaving(leaving, images.labels_N, list("abcdefg"), 2, LATENCY_MS)
    assert [row.name for row in rows] != []
    assert "g" not in {row.name for row in rows}  # it has no images
    assert [row.expected_ms for row in rows] == sorted(row.expected_ms for row in rows)
    assert sum(row.images * row.early for row in rows) == pytest.approx((leaving.taken_N < 2).sum())


def test_pictures_are_small_files_of_the_images_that_were_asked_for(tmp_path: Path) -> None:
    batches = [
        (torch.full((2, channels, 9, 9), float(number)), torch.zeros(2)) for number, channels in ((0, 3), (1, 3))
    ]
    batches[1][0][1, :, 0, 0] = 9.0
    write_pictures(iter(batches), {3: [tmp_path / "a" / "x.png", tmp_path / "y.png"]})
    pictures = [Image.open(file) for file in (tmp_path / "a" / "x.png", tmp_path / "y.png")]
    for picture in pictures:
        pixels = np.asarray(picture)
        assert pixels.shape == (9, 9, 3)
        assert pixels[0, 0].tolist() == [255, 255, 255]
        assert pixels[1, 1].tolist() == [0, 0, 0]
    assert np.asarray(Image.open(BytesIO(png(torch.rand(1, 200, 100))))).shape == (64, 32)


@pytest.mark.parametrize(("changed", "told"), [({"precision": "int8"}, "int8"), ({"batch": 4}, r"batch=4")])
def test_a_device_that_thresholds_are_not_for_is_told(changed: dict[str, Any], told: str) -> None:
    given: Any = {"accuracy": None, "latency": None, "energy": None, "lut": Path(), "front": None, **changed}
    device = PolicyDevice(target=SimpleNamespace(name="phone"), **given)  # type: ignore[arg-type]
    reason = _unfit(device)
    assert reason is not None
    assert told in reason
    assert "device.phone" in reason


def test_an_exit_that_always_answers_the_same_is_told_by_its_name() -> None:
    drawn = drawn_held_out(0, 1500)
    drawn.logits_NEK[:, 1, 4] = 99.0
    named = HeldOut(
        logits_NEK=drawn.logits_NEK,
        labels_N=drawn.labels_N,
        latency_ms_E=LATENCY_MS,
        names=("stage.1", "stage.2", "last"),
    )
    with pytest.raises(UserError, match=r"exit stage\.2: answers class 4 to all 1500 images"):
        calibrate(named, Settings().promise, np.random.default_rng(0))
