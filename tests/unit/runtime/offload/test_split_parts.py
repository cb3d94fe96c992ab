"""Plans, deadlines, codings and descriptions of segments, each on its own."""

import hashlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import SEGMENTS_FILE
from adaptive_runtime.offload.links import DeviceAddress, MeasuredLink
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, PreferredPlacements, SplitNetwork, SplitSubNet
from adaptive_runtime.offload.split.runner import SpotCheck, largest_difference, latest_starts
from profiling_agents.messages import ActivationCoding, ServedSubNet, coded_bytes
from profiling_agents.streams import STEPS, decoded, decoded_all, encoded

CODINGS: tuple[ActivationCoding, ...] = ("fp32", "fp16", "int8")
requests = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=6)


@given(requests)
def test_latest_starts_bring_all_in_time_and_a_later_one_does_not(drawn: list[tuple[int, int]]) -> None:
    drawn.sort()
    deadlines, durations = [one[0] for one in drawn], [one[1] for one in drawn]
    starts = latest_starts(deadlines, durations)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    assert all(end <= deadline for end, deadline in zip(ends, deadlines, strict=True))
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    end = starts[0] + 1
    late = []
    for deadline, duration in zip(deadlines, durations, strict=True):
        end += duration
        late.append(end > deadline)
    if all(start == ends[number] for number, start in enumerate(starts[1:])):  # without gaps, one more is too late
        assert any(late)


@given(requests)
def test_if_any_order_is_in_time_the_order_of_deadlines_is(drawn: list[tuple[int, int]]) -> None:
    def in_time(order: Any) -> bool:
        ends = itertools.accumulate(duration for _, duration in order)
        return all(end <= deadline for end, (deadline, _) in zip(ends, order, strict=True))

    drawn.sort()
    possible = any(in_time(order) for order in itertools.permutations(drawn))
    assert possible == (latest_starts([one[0] for one in drawn], [one[1] for one in drawn])[0] >= 0)


floats = st.floats(-1e4, 1e4, width=32)
tensors = hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=5), elements=floats)


@given(tensors, st.sampled_from(CODINGS))
def test_a_coding_changes_values_by_its_step_at_most(tensor: np.ndarray, coding: ActivationCoding) -> None:
    sent, content = encoded(tensor, coding)
    assert len(content) == coded_bytes([tensor.shape], [sent])
    found = decoded(sent, tensor.shape, content)
    assert found.dtype == np.float32
    assert found.shape == tensor.shape
    most = float(np.abs(tensor).max())
    assert np.abs(found - tensor).max() <= STEPS[coding] * most * (1 + 1e-4) + 1e-7 * most + 6e-8
    assert coding != "fp32" or np.array_equal(found, tensor)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_values_that_a_coding_has_not_stay_in_fp32(value: float) -> None:
    tensor = np.array([1.0, value], np.float32)
    codings = {encoded(tensor, coding)[0].coding for coding in CODINGS}
    assert codings <= ({"fp32", "int8"} if np.isfinite(value) else {"fp32"})
    sent, content = encoded(tensor, "fp16")
    assert np.array_equal(decoded(sent, tensor.shape, content), tensor, equal_nan=True)


def test_tensors_lie_one_behind_the_other() -> None:
    some = [np.full((2, 3), 1.5, np.float32), np.full((4,), -2.0, np.float32)]
    sent = [encoded(some[0], "int8"), encoded(some[1], "fp16")]
    found = decoded_all([one for one, _ in sent], [one.shape for one in some], b"".join(part for _, part in sent))
    assert all(np.allclose(*pair, rtol=1e-6, atol=0) for pair in zip(found, some, strict=True))


def test_neighbouring_segments_of_a_device_are_one_leg() -> None:
    plan = PlacedSegments(devices=(COORDINATOR, "a", "a", "b", COORDINATOR))
    assert [tuple(leg) for leg in plan.segments] == [(COORDINATOR, 0, 0), ("a", 1, 2), ("b", 3, 3), (COORDINATOR, 4, 4)]
    assert plan.peers == {"a", "b"}


def test_the_first_plan_whose_devices_are_in_is_followed() -> None:
    plans = [PlacedSegments(devices=("a", "b")), PlacedSegments(devices=("b", "b"))]
    choice, link = PreferredPlacements(plans), MeasuredLink()
    assert choice.choose({"a": link, "b": link}) == plans[0]
    assert choice.choose({"b": link}) == plans[1]
    assert choice.choose({"a": link}).peers == set()
    with pytest.raises(AdaptiveError, match="different numbers of segments"):
        PreferredPlacements([*plans, PlacedSegments(devices=("a",))])
    with pytest.raises(AdaptiveError, match="plans: none"):
        PreferredPlacements([])


def test_values_cross_once_and_only_those_that_are_read(split: SplitSubNet) -> None:
    subnet, last = split.subnet, len(split.subnet.segments) - 1
    assert subnet.entering(0, last) == (subnet.input,)
    assert subnet.leaving(0, last) == (subnet.answer,)
    for cut in range(last):
        assert subnet.leaving(0, cut) == subnet.entering(cut + 1, last)
        assert all(subnet.shapes[name] for name in subnet.leaving(0, cut))


Change = dict[str, Any]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"answer": "nothing"}, "the last segment does not give the answer 'nothing'"),
        ({"input": "nothing"}, "segment 0 reads 'input', which nothing before it gives"),
        ({"file_bytes": {}}, "file_bytes does not name the files"),
    ],
)
def test_a_subnet_that_cannot_run_is_no_subnet(change: Change, line: str, split: SplitSubNet) -> None:
    with pytest.raises(ValidationError, match=line):
        ServedSubNet.model_validate({**split.subnet.model_dump(), **change})


def test_segments_that_do_not_fit_each_other_are_no_subnet(split: SplitSubNet) -> None:
    fields = split.subnet.model_dump()
    with pytest.raises(ValidationError, match=r"segment 0 reads '.*', which nothing before it gives"):
        ServedSubNet.model_validate({**fields, "segments": fields["segments"][1:]})
    huge = [{**fields["segments"][0], "output_shapes": [[2**30, 2**30]]}, *fields["segments"][1:]]
    with pytest.raises(ValidationError, match=r"is \(1073741824, 1073741824\) elsewhere"):
        ServedSubNet.model_validate({**fields, "segments": huge})
    alone = {**fields["segments"][-1], "input_shapes": [[2**30, 2**30]]}
    with pytest.raises(ValidationError, match=f"its tensors have more than {1 << 28} bytes"):
        ServedSubNet.model_validate(
            {
                **fields,
                "segments": [alone],
                "input": alone["input_names"][0],
                "file_bytes": {alone["files"][0]: fields["file_bytes"][alone["files"][0]]},
            }
        )


def test_a_chain_with_shared_weights_is_refused(chain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(chain, tmp_path / "chain"))
    (folder / "weights.safetensors").write_bytes(b"")
    content = json.loads((folder / SEGMENTS_FILE).read_text())
    content["files"]["weights.safetensors"] = hashlib.sha256(b"").hexdigest()
    (folder / SEGMENTS_FILE).write_text(json.dumps(content))
    with pytest.raises(AdaptiveError, match=r"keep their weights in weights\.safetensors; allowed: segments with"):
        SplitSubNet.open(folder)


def test_coordinator_is_no_other_device(split: SplitSubNet) -> None:
    address = DeviceAddress(url="tcp://127.0.0.1:1", token="t" * 16)
    with pytest.raises(AdaptiveError, match="devices: one is called 'coordinator'"):
        SplitNetwork(split, {COORDINATOR: address}, [PlacedSegments(devices=(COORDINATOR,) * 4)])


@pytest.mark.parametrize(("error", "wrong"), [(0.0, False), (4e-4, False), (2e-3, True), (np.nan, True)])
def test_a_check_allows_what_the_coding_does_and_no_more(error: float, wrong: bool) -> None:
    expected = np.linspace(-1, 1, 100, dtype=np.float32)
    got = expected.copy()
    got[-1] += error
    check = SpotCheck(("a",), 0, 0, {}, {"y": got}, "fp16")
    assert (largest_difference(check, {"y": expected}) > 1e-3) == wrong
