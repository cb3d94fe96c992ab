"""The count of live storages follows tensors from their birth to their end."""

import torch

from tasks.training.memory import StorageCount, state_share, tensors_of


def test_peak_has_all_tensors_that_live_together() -> None:
    x = torch.zeros(1024)
    with StorageCount([x]) as count:
        y = x + 1
        view = y.view(32, 32)
        assert count.bytes == 2 * x.nbytes
        z = view * 2
        del y, view
        assert count.bytes == 2 * x.nbytes
        w = z.exp_()
    assert count.peak_bytes == 3 * x.nbytes
    del z, w
    assert count.bytes == x.nbytes


def test_what_autograd_saves_counts_until_the_backward_pass() -> None:
    x = torch.ones(1024, requires_grad=True)
    with StorageCount([x]) as count:
        loss = x.sigmoid().sigmoid().sum()
        assert count.bytes == 3 * x.nbytes + 4
        loss.backward()
    assert count.bytes == 2 * x.nbytes + 4


def test_tensors_of_a_step_are_weights_buffers_gradients_and_state() -> None:
    module = torch.nn.BatchNorm2d(8)
    optimiser = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    module(torch.randn(2, 8, 4, 4)).sum().backward()
    optimiser.step()
    sizes = sorted(t.numel() for t in tensors_of(module, optimiser))
    assert sizes == [1] + [8] * 8


def test_state_of_an_optimiser_is_measured_for_each_byte_of_weights() -> None:
    weights = [torch.nn.Parameter(torch.zeros(8))]
    made = (
        torch.optim.SGD(weights, 0.1),
        torch.optim.SGD(weights, 0.1, momentum=0.9, nesterov=True, fused=True),
        torch.optim.AdamW(weights, 0.1, fused=True),
    )
    assert [round(state_share(optimiser), 3) for optimiser in made] == [0, 1, 2]
