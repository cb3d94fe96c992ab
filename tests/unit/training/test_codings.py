"""Codings of activations: what is lossless comes back, what is rounded is off by half a step at most."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tasks.training.memory.storage import CHUNK, GROUP, Bits, CodedGroups, CodedWindows, Gates, gate_bytes, group_bytes
from tests.support import examples


@settings(max_examples=examples(20), deadline=None)
@given(count=st.integers(1, 3 * GROUP), bits=st.sampled_from((4, 8)), seed=st.integers(0, 99))
def test_groups_are_off_by_half_a_step_at_most(count: int, bits: Bits, seed: int) -> None:
    value = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    groups = CodedGroups.of(value, bits)
    steps = groups.step.expand(-1, GROUP).reshape(-1)[:count]
    assert bool(((groups.value() - value).abs() <= steps * 0.5001 + 1e-7).all())
    stored = groups.codes.nbytes + groups.least.nbytes + groups.step.nbytes
    assert stored == group_bytes(count, bits)


def test_zeros_of_a_relu_stay_zeros_in_groups() -> None:
    value = torch.randn(4, 40, 8, 8, generator=torch.Generator().manual_seed(0)).relu()
    assert bool((CodedGroups.of(value, 4).value()[value == 0] == 0).all())


@settings(max_examples=examples(20), deadline=None)
@given(count=st.sampled_from((1, 7, 8, 1000, CHUNK + 13)), upper=st.sampled_from((6.0, float("inf"))))
def test_gates_pass_what_plain_torch_passes(count: int, upper: float) -> None:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, generator=generator).mul_(5).requires_grad_()
    y = functional.hardtanh(x, 0.0, upper)
    gradient = torch.randn(count, generator=generator)
    (wanted,) = torch.autograd.grad(y, x, gradient)
    gates = Gates.of(y.detach(), 0.0, upper)
    assert torch.equal(gates.times(gradient), wanted)
    assert gates.packed.nbytes == gate_bytes(count)


@settings(max_examples=examples(20), deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    padded=st.booleans(),
)
def test_window_offsets_give_the_indices_back(
    kernel: tuple[int, int], stride: tuple[int, int], dilation: int, padded: bool
) -> None:
    padding = (kernel[0] // 2, kernel[1] // 2) if padded else (0, 0)
    x = torch.randn(2, 3, 11, 13, generator=torch.Generator().manual_seed(1))
    _, indices = functional.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True)
    windows = CodedWindows(13, kernel, stride, padding, (dilation, dilation))
    offsets = windows.offsets(indices)
    assert offsets.dtype == torch.uint8
    assert torch.equal(windows.indices(offsets), indices)
