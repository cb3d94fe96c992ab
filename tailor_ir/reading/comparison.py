"""Compare a traced module with its compiled network on several different inputs.

A trace freezes each `if` as decided for one input. If decisions depend on values, the two networks give different answers.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from tailor_ir.errors import ImportFailed, MixedSamples, first_line
from tailor_ir.graph import NO_BATCH
from tailor_ir.reading.files import LOW, other_types
from tailor_ir.reading.inputs import ExampleInputs, evaluated
from tailor_ir.reading.trace import gives_caches, plain_attention, plain_transformers, uncompiled
from tailor_ir.reading.value_reads import ValueReads, tensors_in

BATCH = 4  # more samples than the trace
TOLERANCE = 1e-3
"""Tolerated difference, as a share of the largest output. Elastic and original timm networks differ by less than 1e-4."""
ROUNDING = 8  # multiple of the type's precision that counts as equal
ROUNDINGS = 32  # roundings of half or bfloat16 that may add up
NUDGE = 1e-6  # relative change of inputs or intermediate values, to measure how much an ill-conditioned network amplifies it
NUDGES = 10  # differences up to this multiple of a nudge's effect may be rounding
ROUNDED_RUNS = 8  # about half of them pass a jump
MOST_LINES = 3
STATES_LEFT_OUT = (
    "{} tensors that the network gives for its next call are no outputs of the compiled network; "
    "a module around it gives them where it calls it with use_cache=True"
)

REFUSALS = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)
"""Errors that networks raise for inputs that they do not accept."""

Answer = list[torch.Tensor]
PlacesOfValues = dict[str, set[object]]
"""`file:line` of each read of a value -> the truth values that were read; None for other numbers."""
Batches = tuple[torch.Tensor, ...]
"""A batch of each input, in order."""


def compare(module: nn.Module, compiled: nn.Module, examples: ExampleInputs, known: Iterable[str]) -> PlacesOfValues:
    """Compare the answers to more inputs than those of the Reference. known: lines that read values, of earlier runs.

    A module in half or bfloat16 rounds in each layer, so ROUNDINGS of its type are allowed. Inputs are a batch and a single
    sample; if Python reads values, also batches with other signs and sizes. Inputs that the module itself refuses are skipped.
    ImportFailed: an answer differs by more than TOLERANCE of its largest number, and by more than rounding explains.
    MixedSamples: the compiled network cannot run a batch of another size.
    """
    where = f"network '{type(module).__name__}'"
    tolerance = tolerance_of(module, examples)
    places: PlacesOfValues = {place: set() for place in known}
    compared = False
    with (
        evaluated(module),
        evaluated(compiled),
        torch.no_grad(),
        plain_attention(),
        plain_transformers(module),
        uncompiled(),
    ):
        for samples, batches in _inputs(examples):
            if compared and not places and samples > 1:
                continue
            expected = recorded_answer(module, examples, batches, places)
            if expected is None:
                continue
            compared = True
            found = answer_of(compiled, batches, where, samples)
            if samples == 1:
                found = shaped_like(found, expected)
            difference = difference_of_answers(expected, found)
            if difference > tolerance and exceeds(difference, batches, lambda given: _tensors(compiled(*given))):
                raise ImportFailed(_refusal(module, difference, places))
    return places


def remarks_on(module: nn.Module, examples: ExampleInputs, places: PlacesOfValues) -> tuple[str, ...]:
    """One remark per line of Python code that branches on values of the input, and one on caches that are left out.

    Places that decided both ways get no remark, because the answers were equal for both.
    """
    decided = (
        f"values of the input decide at {place}: the compiled network keeps what was decided for the example input"
        for place, values in places.items()
        if values != {True, False}
    )
    return (*decided, *_states_left_out(module, examples))


def _states_left_out(module: nn.Module, examples: ExampleInputs) -> tuple[str, ...]:
    """A remark if the network returns tensors for its next call, which the compiled network does not return."""
    if not gives_caches(module):
        return ()
    with evaluated(module), torch.no_grad(), plain_attention(), uncompiled():
        own = recorded_answer(module, examples, examples.batches(1), {})
        with plain_transformers(module):
            plain = recorded_answer(module, examples, examples.batches(1), {})
    left = len(own or ()) - len(plain or ())
    return (STATES_LEFT_OUT.format(left),) if left > 0 else ()


def tolerance_of(module: nn.Module, examples: ExampleInputs) -> float:
    """Allowed difference of the compiled network's answers, as a share of the largest number."""
    low = other_types(module, examples.tensors).intersection(LOW)
    return max((ROUNDINGS * torch.finfo(kind).eps for kind in low), default=TOLERANCE)


def answer_of(compiled: nn.Module, batches: Batches, where: str, samples: int) -> Answer:
    """The answer of a compiled network. MixedSamples: the network cannot run a batch of this size."""
    try:
        return _tensors(compiled(*batches))
    except (IndexError, RuntimeError, ValueError) as error:
        raise MixedSamples(
            f"{where}: the compiled network cannot run a batch of {samples} ({first_line(error)}); allowed: networks that "
            "treat all samples alike, in batches of any size; look for sizes that are written as numbers"
        ) from error


def shaped_like(found: Answer, expected: Answer) -> Answer:
    """An answer to one sample, reshaped like the expected one: networks may drop an axis of size 1."""
    pairs = zip(found, expected, strict=False)
    same = [one.reshape(other.shape) if one.numel() == other.numel() else one for one, other in pairs]
    return [*same, *found[len(expected) :]]


def _refusal(module: nn.Module, difference: float, places: PlacesOfValues) -> str:
    size = f"{difference:.2g} of the largest output" if difference < float("inf") else "other shapes or infinite values"
    more = f" and {len(places) - MOST_LINES} more" if len(places) > MOST_LINES else ""
    where = f"; values of the input decide at {', '.join(list(places)[:MOST_LINES])}{more}" if places else ""
    return (
        f"network '{type(module).__name__}': the compiled network answers otherwise than the original ({size}){where}; "
        "allowed: the same operators for every input; take torch.where in the place of `if`"
    )


def _inputs(examples: ExampleInputs) -> Iterator[tuple[int, Batches]]:
    """Pairs (number of samples, inputs) whose sums, means and extremes are positive, negative, and equal to the examples'.

    Integers are those of the examples; in a batch, each sample has them shifted by one more place than the sample before. The
    last input is a single sample.
    """
    own, axes = examples.batches(BATCH), examples.axes
    moved = tuple(map(_moved, own, axes))
    if any(one.is_floating_point() for one in own):
        generator = torch.Generator().manual_seed(0)
        shifted = tuple(
            torch.randn(one.shape, generator=generator).to(one) + 0.5 if one.is_floating_point() else one
            for one in moved
        )
        yield BATCH, shifted
        yield BATCH, tuple(-4 * one if one.is_floating_point() else one for one in shifted)
    if any(one is not other for one, other in zip(own, moved, strict=True)):
        yield BATCH, moved
    padded = tuple(map(_padded, moved, axes))
    if any(one is not other for one, other in zip(padded, moved, strict=True)):
        yield BATCH, padded
    yield BATCH, own
    yield 1, tuple(one if axis == NO_BATCH else one.narrow(axis, 0, 1) for one, axis in zip(moved, axes, strict=True))


def _padded(batch: torch.Tensor, axis: int) -> torch.Tensor:
    """Masks of ones get zeros at the end of every other sample; other tensors are unchanged."""
    if axis or batch.is_floating_point() or batch.ndim != 2 or batch.shape[-1] == 1 or not bool((batch == 1).all()):
        return batch
    padded = batch.clone()
    padded[1::2, -(batch.shape[-1] // 4 or 1) :] = 0
    return padded


def _moved(batch: torch.Tensor, axis: int) -> torch.Tensor:
    """Integer sequences are shifted by one more place per sample; other tensors are unchanged."""
    if axis or batch.is_floating_point() or batch.ndim < 2 or batch.shape[-1] == 1:
        return batch
    return torch.stack([sample.roll(index, -1) for index, sample in enumerate(batch)])


def recorded_answer(
    module: nn.Module, examples: ExampleInputs, batches: Batches, places: PlacesOfValues
) -> Answer | None:
    """The module's answer; None for inputs that the module refuses. Records in `places` the lines that read values.

    Refused inputs add only the place, not the values that were read, because no answer is compared.
    """
    given = tuple(one.clone() for one in batches)
    reads = ValueReads(dict(zip(examples.names, given, strict=True)))
    answer: Answer | None = None
    try:
        with reads:
            answer = _tensors(examples.call(module, given))
    except REFUSALS:
        return None
    finally:
        for place, values in reads.decisions.items():
            places.setdefault(place, set()).update(values if answer is not None else ())
    return answer


def _tensors(answer: object) -> Answer:
    return [tensor.detach().cpu() for tensor in tensors_in(answer)]


def exceeds(difference: float, given: Batches, answer: Callable[[Batches], Answer | None]) -> bool:
    """Whether a difference of answers to a batch is more than TOLERANCE, and more than rounding explains.

    answer: runs a torch network. It is repeated with slightly moved inputs, and with differently rounded intermediate values,
    because near a jump (such as a comparison) the last bit decides.
    """
    if difference <= TOLERANCE:
        return False
    own, moved = answer(given), answer(tuple(map(_nudged, given)))
    if own is None:
        return True
    if moved is not None and difference <= NUDGES * difference_of_answers(own, moved):
        return False
    if difference == float("inf"):
        return True
    with rounded_otherwise():
        rounded = [answer(given) for _ in range(ROUNDED_RUNS)]
    changes = (difference_of_answers(own, one) for one in rounded if one is not None)
    return difference > NUDGES * max(changes, default=0.0)


@contextmanager
def rounded_otherwise(seed: int = 0) -> Iterator[None]:
    """While inside, outputs of torch modules are perturbed by random multiples of NUDGE of their largest number."""
    generator = torch.Generator().manual_seed(seed)

    def moved(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(moved, value))
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
            return value
        noise = torch.randn(value.shape, generator=generator).to(value)
        return value + NUDGE * value.abs().max() * noise

    def answered(module: nn.Module, given: Any, answer: Any) -> Any:
        return moved(answer)

    hook = register_module_forward_hook(answered)
    try:
        yield
    finally:
        hook.remove()


def _nudged(batch: torch.Tensor) -> torch.Tensor:
    return batch + NUDGE * (float(batch.abs().max()) or 1.0) if batch.is_floating_point() else batch


def difference_of_answers(expected: Answer, found: Answer) -> float:
    """Largest difference of two answers, each tensor relative to its largest number; infinite if shapes differ."""
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
        return float("inf")
    return max((_one_difference(one, other) for one, other in zip(expected, found, strict=True)), default=0.0)


def _one_difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    if not expected.is_floating_point():  # labels: the share of different ones
        return float((expected != found).double().mean()) if expected.numel() else 0.0
    one, other = expected.double(), found.double()
    finite = one.isfinite()
    if not torch.equal(finite, other.isfinite()):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(one[finite].abs().max())
    difference = float((one - other)[finite].abs().max())
    return 0.0 if difference <= ROUNDING * torch.finfo(expected.dtype).eps * largest else difference / (largest or 1.0)
