"""What holds for every network: it compiles, or is refused in one line; all SubNets are the same in their three forms."""

import contextlib
import io
import logging
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import onnxruntime
import torch

import tailor_ir
from tailor_ir.conversion.outputs import WRONG_REWRITES
from tailor_ir.reading.comparison import rounded_otherwise
from tailor_ir.spaces.selectors import Config
from tests.fuzzing.modules import draw_module
from tests.fuzzing.networks import BATCH, Network

ORIGINAL_TOLERANCE = 1e-4
"""Of the largest SubNet, relative to the largest number of an output: other kernels sum up in another order."""
SUBNET_TOLERANCE = 1e-4
NUDGE = 1e-5
"""Of an input: what a network makes of it is how uncertain its answer is; rounding is a hundred times smaller."""
NUDGES, UNCERTAIN = 6, 3.0
BATCHES = (1, 3)
LONGEST_LINE = 400
LARGEST_NUMBER = 1e6
SMALLEST_NUMBER = 1e-4
"""Differences of smaller answers are relative to it: runtimes approximate sigmoids to an absolute error."""
MOST_MODELS = 12
WITH_TRANSFORMS, WITH_FILES = 5, 3
"""One network in so many has learned transforms of kernels, or is saved and loaded."""
WRONG = "answers otherwise"
logging.getLogger("tailor_ir").addHandler(logging.NullHandler())  # remarks are no noise
ROOM = str(Path(tailor_ir.__file__).parent)

Answers = list[np.ndarray]
Feeds = Mapping[str, np.ndarray]


class NoReference(Exception):
    """onnxruntime does not run the original, or gives no numbers: another network is drawn."""


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: by which faults are counted. text: all that is known of it."""

    kind: str
    text: str


class Found(Exception):
    """A fault, from inside of a check."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.fault = Fault(kind, text)


@dataclass(slots=True)
class Outcome:
    """refused: the line that says why it does not compile; "" where it does. subnets: how many it has."""

    refused: str = ""
    subnets: int = 0
    operators: frozenset[str] = frozenset()
    faults: list[Fault] = field(default_factory=list)

    def run(self, check: Callable[[], None]) -> None:
        """One check, whose fault is noted."""
        try:
            check()
        except Found as found:
            self.faults.append(found.fault)
        except Exception as error:  # noqa: BLE001  whatever it is, it is a fault
            self.faults.append(Fault(_place_of(error), "".join(traceback.format_exception(error))))


def examine(network: Network | int, seed: int = 0) -> Outcome:
    """All checks of one network; of a number, of the module of this seed. NoReference: nothing to compare it with."""
    original = FromModule(network) if isinstance(network, int) else FromGraph(network)
    reference, outcome, shouted = Reference(original), Outcome(), io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(shouted):
        warnings.simplefilter("always")
        with contextlib.redirect_stderr(shouted):
            outcome.run(lambda: _examine(reference, seed, outcome))
    for one in warned:
        outcome.faults.append(Fault(f"warning: {one.category.__name__}: {str(one.message)[:60]}", str(one)))
    if shouted.getvalue().strip():
        outcome.faults.append(Fault("prints", shouted.getvalue()))
    return outcome


def _place_of(error: BaseException) -> str:
    """Type, and the deepest function of the product."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(ROOM)]
    where = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    file = Path(where.filename)
    place = file.relative_to(ROOM) if frames else file.name
    return f"{type(error).__name__} in {place}:{where.name}"


class Original(Protocol):
    """What is compiled, and what it answers. batches: in which all samples are treated alike."""

    batches: tuple[int, ...]

    def compiled(self, kernel_transform: bool = False) -> tailor_ir.SuperNet: ...

    def run(self, feeds: Feeds) -> Answers: ...

    def feeds(self, batch: int, seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Feeds: ...


class FromGraph:
    """A drawn graph, in onnxruntime."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.batches: tuple[int, ...] = BATCHES[1:] if network.drops_a_batch_of_one else BATCHES
        self.feeds = network.feeds
        try:
            self.session = session_of(network.model(), WRONG_REWRITES)
        except Exception as error:
            raise NoReference(str(error)) from error

    def compiled(self, kernel_transform: bool = False) -> tailor_ir.SuperNet:
        model = self.network.model(self.network.fixed_batch or BATCH)
        return tailor_ir.compile(model, kernel_transform=kernel_transform)

    def run(self, feeds: Feeds) -> Answers:
        return run_session(self.session, feeds)


class FromModule:
    """A drawn module, as torch runs it."""

    def __init__(self, seed: int) -> None:
        self.module, self.sample = draw_module(seed)
        self.batches: tuple[int, ...] = BATCHES

    def compiled(self, kernel_transform: bool = False) -> tailor_ir.SuperNet:
        return tailor_ir.compile(self.module, self.sample, kernel_transform=kernel_transform)

    def run(self, feeds: Feeds) -> Answers:
        return _call(self.module, feeds)

    def feeds(self, batch: int, seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Feeds:
        shape = next(iter(shapes.values())) if shapes else (batch, *self.sample.shape[1:])
        return {"input": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


class Reference:
    """The original's answers. NoReference: there are none, or no numbers."""

    def __init__(self, original: Original) -> None:
        self.original = original
        try:
            self.feeds = {batch: original.feeds(batch, seed=batch) for batch in original.batches}
            self.answers = {batch: original.run(feeds) for batch, feeds in self.feeds.items()}
        except Exception as error:
            raise NoReference(str(error)) from error
        for answer in (one for answers in self.answers.values() for one in answers):
            numbers = answer.astype(np.float64)
            if not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0.0) > LARGEST_NUMBER:
                raise NoReference("numbers without a bound")


def session_of(model: onnx.ModelProto | Path, disabled: Sequence[str] = ()) -> onnxruntime.InferenceSession:
    """disabled: names of onnxruntime's optimisers that change answers."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    content = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )


def run_session(session: onnxruntime.InferenceSession, feeds: Feeds) -> Answers:
    """Inputs are given in their order: names may differ."""
    names = [one.name for one in session.get_inputs()]
    return list(map(np.asarray, session.run(None, dict(zip(names, feeds.values(), strict=True)))))


def _examine(reference: Reference, seed: int, outcome: Outcome) -> None:
    original = reference.original
    try:
        net = _compiled(original, seed)
    except tailor_ir.TailorError as error:
        outcome.refused = str(error)
        _one_line(outcome.refused)
        return
    outcome.subnets = int(net.space.distinct)
    outcome.operators = frozenset(node.op for node in net.structure.graph.nodes)
    _check_largest(net, reference, "largest SubNet")
    net.sort_channels()
    outcome.run(lambda: _check_largest(net, reference, "largest SubNet after sorting"))
    sampled = net.space.sample(np.random.default_rng(seed))
    named = {"largest SubNet": net.max_config, "smallest SubNet": net.min_config, "sampled SubNet": sampled}
    different = {net.space.digest(config): name for name, config in reversed(named.items())}
    configs = {name: named[name] for name in different.values()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name, config in configs.items():
            outcome.run(lambda: _check_subnet(net, original, config, name, folder))  # noqa: B023
            outcome.run(lambda: _check_operators(net, config, name))  # noqa: B023
            outcome.run(lambda: _check_counts(net, config, name))  # noqa: B023
        if seed % WITH_FILES == 0:
            outcome.run(lambda: _check_saved(net, original, folder / "saved"))
    outcome.run(lambda: _check_models(net))


def _compiled(original: Original, seed: int) -> tailor_ir.SuperNet:
    """Now and then with learned transforms of kernels, where there are kernels to choose from."""
    if seed % WITH_TRANSFORMS == 0:
        with contextlib.suppress(tailor_ir.SpaceError):
            return original.compiled(kernel_transform=True)
    return original.compiled()


def _check_operators(net: tailor_ir.SuperNet, config: Config, name: str) -> None:
    missing = set(net.operators(config)) - net.unique_operators().keys()
    if missing:
        raise Found("operators are not among the unique ones", f"{name} {config}: {missing}")


def _check_counts(net: tailor_ir.SuperNet, config: Config, name: str) -> None:
    counts = (net.macs(config), net.parameters(config), net.peak_activation_bytes(config))
    if min(counts) < 0:
        raise Found("negative counts", f"{name} {config}: {counts}")


def _check_models(net: tailor_ir.SuperNet) -> None:
    for feature in list(net.unique_operators())[:MOST_MODELS]:
        session_of(onnx.load_from_string(tailor_ir.operator_model(feature)))


def _one_line(text: str) -> str:
    if "\n" in text:
        raise Found("a refusal of several lines", text)
    if WRONG in text:  # a fault, told by the compiler's own comparison
        raise Found("the compiler finds its own network wrong", text)
    if len(text) >= LONGEST_LINE:
        raise Found("a long refusal: " + " ".join(text.split()[:2]), text)
    return text


def _tensors(feeds: Feeds) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in feeds.values()]


def _call(module: Callable[..., object], feeds: Feeds) -> Answers:
    with torch.no_grad():
        found = module(*_tensors(feeds))
    parts = found if isinstance(found, tuple | list) else (found,)
    return [part.numpy() for part in parts]


def _check_largest(net: tailor_ir.SuperNet, reference: Reference, name: str) -> None:
    net.elastic.eval()
    net.elastic.activate(net.max_config)
    for batch, feeds in reference.feeds.items():
        _same(f"{name} is not the original", reference.answers[batch], _call(net.elastic, feeds), net.elastic, feeds)


def _check_subnet(net: tailor_ir.SuperNet, original: Original, config: Config, name: str, folder: Path) -> None:
    net.elastic.eval()
    net.elastic.activate(config)
    built = net.build(config)
    for batch in BATCHES:
        shapes = net.input_shapes(config, batch)
        feeds = original.feeds(batch, 20 + batch, shapes)
        expected = _call(net.elastic, feeds)
        _same(f"{name}: built is not elastic", expected, _call(built, feeds), net.elastic, feeds, str(config))
        net.export(config, folder / "subnet.onnx", batch=batch, fold_batch_norm=batch == 1)
        session = session_of(folder / "subnet.onnx")
        exported = run_session(session, feeds)
        _same(f"{name}: exported is not elastic", expected, exported, net.elastic, feeds, str(config))


def _check_saved(net: tailor_ir.SuperNet, original: Original, folder: Path) -> None:
    net.save(folder)
    loaded = tailor_ir.load(folder)
    feeds = original.feeds(1, 5)
    for each in (net, loaded):
        each.elastic.eval()
        each.elastic.activate(net.max_config)
    _same("loaded is not saved", _call(net.elastic, feeds), _call(loaded.elastic, feeds), net.elastic, feeds)


def _same(kind: str, expected: Answers, found: Answers, module: torch.nn.Module, feeds: Feeds, more: str = "") -> None:
    """Shapes, types and numbers; where they differ, by more than rounding inside of `module` changes its answer."""
    if [(a.shape, a.dtype) for a in expected] != [(b.shape, b.dtype) for b in found]:
        told = [[(a.shape, a.dtype.name) for a in answers] for answers in (expected, found)]
        raise Found(f"{kind}: shapes", f"{kind} {more}: {told[1]} instead of {told[0]}")
    tolerance = ORIGINAL_TOLERANCE if "original" in kind else SUBNET_TOLERANCE
    differences = _differences(expected, found)
    if max(differences, default=0.0) <= tolerance:
        return
    uncertain = np.max(list(_by_rounding(module, feeds)), axis=0)
    for own, other in zip(differences, uncertain, strict=True):
        if own > tolerance + UNCERTAIN * other:
            raise Found(kind, f"{kind} {more}: difference {own:.3g} (of a nudge: {other:.3g})")


def _differences(expected: Answers, found: Answers) -> list[float]:
    """Differences of each output, relative to its largest number; for whole numbers and truth values, the share that differs.

    If a number is very large, entries that only one answer holds are left out: products overflow in one order alone.
    """
    differences = []
    for one, other in zip(expected, found, strict=True):
        if not one.size:
            differences.append(0.0)
        elif not np.issubdtype(one.dtype, np.floating):
            differences.append(float((one != other).mean()))
        else:
            both = np.isfinite(one)
            if np.abs(one[both]).max(initial=0.0) > LARGEST_NUMBER:
                both &= np.isfinite(other)
            elif not np.array_equal(both, np.isfinite(other)):
                differences.append(np.inf)
                continue
            apart = np.abs(one - other)[both].max(initial=0.0)
            differences.append(float(apart / max(np.abs(one)[both].max(initial=0.0), SMALLEST_NUMBER)))
    return differences


def _by_rounding(module: torch.nn.Module, feeds: Feeds) -> Iterator[list[float]]:
    """Differences of a module's answers, where its inputs and all values in between are a little different."""
    own = _call(module, feeds)
    for seed in range(NUDGES):
        rng = np.random.default_rng(seed)
        nudged = {
            name: (array + NUDGE * rng.standard_normal(array.shape)).astype(array.dtype)
            if np.issubdtype(array.dtype, np.floating)
            else array
            for name, array in feeds.items()
        }
        with rounded_otherwise(seed):
            yield _differences(own, _call(module, nudged))
