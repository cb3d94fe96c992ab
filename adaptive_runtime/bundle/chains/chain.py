"""Chains that answer: a SubNet with exits for one sample, or for a batch whose samples leave one by one.

In onnxruntime each segment has a session, and values go from one session to the next without a copy. ONNX files that
run one behind the other also join to one segment.

Legend: N samples, C channels, H height, W width, K classes.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.closing import Closing
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains.manifest import SEGMENTS_FILE, ChainManifest
from adaptive_runtime.bundle.chains.runs import (
    Array,
    ChainRun,
    ChainRuntime,
    NcnnChain,
    own_settings,
    require_runtime,
    session_options,
)
from adaptive_runtime.exits import Decider, Thresholds
from adaptive_runtime.samples.inputs import input_forms, unpacked


def run_session(session: Any, given: Mapping[str, Any], outputs: Sequence[str]) -> Sequence[Any]:
    """Outputs of a session by name, from inputs by name: each an `OrtValue`, which is not copied.

    A binding takes a quarter of the overhead that `run_with_ort_values` adds to the run.
    """
    binding = session.io_binding()
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    found: Sequence[Any] = binding.get_outputs()
    return found


class OnnxChain:
    """Segments in onnxruntime.

    session_of: returns the session of a segment by its position; called when the segment runs. kept: the sessions never change,
    so that files of a fixed batch are bound only once: to the memory of a run, which the next run takes over.
    """

    def __init__(self, manifest: ChainManifest, session_of: Callable[[int], Any], *, kept: bool = False) -> None:
        import onnxruntime

        self.batch = manifest.input.shape[0]
        self.inputs = manifest.input.every
        self.value_of = onnxruntime.OrtValue.ortvalue_from_numpy
        self.memory_of = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        self.session_of = session_of
        self.segments = manifest.segments
        self.names = [
            tuple(tuple(one.name for one in each) for each in (segment.inputs, segment.outputs))
            for segment in manifest.segments
        ]
        self._free: deque[BoundRun] | None = deque() if kept and _is_fixed(manifest) else None

    @classmethod
    def open(cls, manifest: ChainManifest, folder: Path) -> Self:
        """Open the chain with all sessions."""
        import onnxruntime

        options = session_options(own_settings(manifest, "onnxruntime"))
        sessions = [
            onnxruntime.InferenceSession(folder / str(segment.file), options, providers=["CPUExecutionProvider"])
            for segment in manifest.segments
        ]
        return cls(manifest, sessions.__getitem__, kept=True)

    def start(self, x_NCHW: Array) -> ChainRun:
        """A run at its start, with samples (N, C, H, W)."""
        if self._free is None:
            return _OnnxRun(self, x_NCHW)
        try:
            bound = self._free.pop()
        except IndexError:  # all memory is in use: several threads run at once
            bound = BoundRun.of(self)
        return _OnBoundMemory(self, bound, x_NCHW)

    def give_back(self, bound: "BoundRun") -> None:
        """Let the next run have the memory of a finished run."""
        if self._free is not None:
            self._free.append(bound)

    def close(self) -> None:
        """Free the sessions."""
        self._free = None
        del self.session_of


def _is_fixed(manifest: ChainManifest) -> bool:
    """Whether all sizes of all values are known."""
    given = (one for segment in manifest.segments for one in segment.outputs)
    return all(size is not None for one in (*manifest.input.every, *given) for size in one.shape)


class _OnnxRun:
    __slots__ = ("_at", "_chain", "_values")

    def __init__(self, chain: OnnxChain, x_NCHW: Array) -> None:
        self._chain, self._at = chain, 0
        parts = (x_NCHW,) if x_NCHW.dtype.names is None else unpacked(x_NCHW)
        self._values = {one.name: chain.value_of(values) for one, values in zip(chain.inputs, parts, strict=True)}

    def next(self) -> Array:
        inputs, outputs = self._chain.names[self._at]
        session = self._chain.session_of(self._at)
        self._at += 1
        values = self._values
        given = run_session(session, {name: values[name] for name in inputs}, outputs)
        values.update(zip(outputs, given, strict=True))
        found: Array = given[0].numpy().copy()
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        self._values = {name: self._chain.value_of(value.numpy()[mask_N]) for name, value in self._values.items()}


class BoundRun(NamedTuple):
    """Memory for one run at a time. inputs: of the network, in order. steps: per segment the bound call and its answer."""

    inputs: tuple[Any, ...]
    steps: tuple[tuple[Callable[[Any], None], Any, Any], ...]

    @classmethod
    def of(cls, chain: OnnxChain) -> Self:
        """Memory bound to the sessions of a chain."""
        starts = [chain.memory_of(list(one.shape), np.dtype(one.type).type) for one in chain.inputs]
        values, steps = {one.name: start for one, start in zip(chain.inputs, starts, strict=True)}, []
        for at, (segment, (inputs, outputs)) in enumerate(zip(chain.segments, chain.names, strict=True)):
            session = chain.session_of(at)
            binding = session.io_binding()
            for name in inputs:
                binding.bind_ortvalue_input(name, values[name])
            for one in segment.outputs:
                values[one.name] = chain.memory_of(list(one.shape), np.float32)
                binding.bind_ortvalue_output(one.name, values[one.name])
            steps.append((session.run_with_iobinding, binding, values[outputs[0]]))
        return cls(tuple(starts), tuple(steps))


class _OnBoundMemory:
    """A run that returns its memory when nothing refers to it any more."""

    __slots__ = ("_at", "_bound", "_chain")

    def __init__(self, chain: OnnxChain, bound: BoundRun, x_NCHW: Array) -> None:
        self._chain, self._bound, self._at = chain, bound, 0
        for memory, values in zip(bound.inputs, unpacked(x_NCHW), strict=True):
            memory.update_inplace(values)

    def __del__(self) -> None:
        self._chain.give_back(self._bound)

    def next(self) -> Array:
        run, binding, answer = self._bound.steps[self._at]
        self._at += 1
        run(binding)
        found: Array = answer.numpy().copy()  # copied, since the next run overwrites this memory
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        assert mask_N.all(), "files of a fixed batch run with all of it"


class JoinedFiles:
    """A SubNet in several files in onnxruntime; each reads the output of the previous one.

    session_of: returns the session of a file by its position; called when the file runs.
    """

    def __init__(self, manifest: ChainManifest, count: int, session_of: Callable[[int], Any]) -> None:
        import onnxruntime

        self.batch = manifest.input.shape[0]
        self.count, self.session_of = count, session_of
        self.value_of = onnxruntime.OrtValue.ortvalue_from_numpy

    def start(self, x_NCHW: Array) -> ChainRun:
        """A run at its start, with samples (N, C, H, W)."""
        return _JoinedRun(self, x_NCHW)

    def close(self) -> None:
        """Free the sessions."""
        del self.session_of


class _JoinedRun:
    __slots__ = ("_chain", "_x")

    def __init__(self, chain: JoinedFiles, x_NCHW: Array) -> None:
        self._chain, self._x = chain, x_NCHW

    def next(self) -> Array:
        """The answer (N, K)."""
        value = self._chain.value_of(self._x)
        for at in range(self._chain.count):
            value = run_file(self._chain.session_of(at), value)
        found: Array = value.numpy().copy()
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        self._x = self._x[mask_N]


def run_file(session: Any, value: Any) -> Any:
    """Run a file with one input and one output: an `OrtValue` from an `OrtValue`."""
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    (found,) = run_session(session, {taken.name: value}, [given.name])
    return found


class ChainAnswers(NamedTuple):
    """Classes, positions of the exits that answered, and their confidences: (N,) each; logits of these exits (N, K)."""

    answers: NDArray[np.int64]
    exits: NDArray[np.int64]
    confidences: NDArray[np.float64]
    logits: Array


def all_leave_at(exit: int) -> Decider:
    """A decider that lets all samples leave at one exit, none before it."""
    return Decider(Thresholds(measure="top_probability", thresholds=(None,) * exit))


class ExitChain(Closing):
    """A loaded chain with thresholds; without them every sample goes to the last exit."""

    def __init__(self, manifest: ChainManifest, runtime: ChainRuntime, thresholds: Thresholds | None = None) -> None:
        last = len(manifest.segments) - 1
        if thresholds is not None and thresholds.full_exit > last:
            got = f"{thresholds.full_exit} thresholds for {last + 1} exits"
            raise AdaptiveError("thresholds", got, allowed=f"at most {last}", next_step="make them for this SubNet")
        self.manifest, self.runtime, self.exits = manifest, runtime, manifest.exits
        self._decider = all_leave_at(last) if thresholds is None else Decider(thresholds)
        self._forms = [(str(one.type), one.shape[1:]) for one in manifest.input.every]

    @classmethod
    def open(cls, folder: str | Path, thresholds: Thresholds | None = None, manifest: str = SEGMENTS_FILE) -> Self:
        """Load the chain of a folder after checking its files. AdaptiveError in one line.

        thresholds: None: those of the file that the manifest names, if it names one.
        """
        folder = Path(folder)
        found = ChainManifest.read(folder / manifest)
        require_runtime(found.format, str(folder))
        runtime = OnnxChain.open(found, folder) if found.format == "onnx" else NcnnChain(found, folder)
        return cls(found, runtime, thresholds or found.own_thresholds(folder))

    def infer(self, x_NCHW: Array, decider: Decider | None = None) -> ChainAnswers:
        """Answers of samples (N, C, H, W), prepared as the manifest says. AdaptiveError for another shape or type.

        decider: decides when samples leave; None: by the chain's own thresholds. Several threads may call this at once.
        """
        self._check(x_NCHW)
        size = self.runtime.batch or len(x_NCHW)
        run, decider = self._one if size == 1 else self._together, decider or self._decider
        parts = [run(x_NCHW[start : start + size], size, decider) for start in range(0, len(x_NCHW), size)]
        return parts[0] if len(parts) == 1 else ChainAnswers(*map(np.concatenate, zip(*parts, strict=True)))

    def outputs(self, x_NCHW: Array) -> Array:
        """Raw outputs of the whole SubNet for such samples, flattened to (N, numbers). No sample leaves early."""
        self._check(x_NCHW)
        size, found = self.runtime.batch or len(x_NCHW), []
        for start in range(0, len(x_NCHW), size):
            part_NCHW = x_NCHW[start : start + size]
            missing = size - len(part_NCHW)
            run = self.runtime.start(np.concatenate([part_NCHW, np.repeat(part_NCHW[-1:], missing, axis=0)]))
            for _ in self.manifest.segments:
                given = run.next()
            found.append(given[: len(part_NCHW)].reshape(len(part_NCHW), -1))
        return np.concatenate(found)

    def _one(self, x_1CHW: Array, size: int, decider: Decider) -> ChainAnswers:
        decision, run = decider.sample(), self.runtime.start(x_1CHW)
        while not decision.leaves(logits_1K := run.next()):
            pass
        exits, sureness = np.array([decision.exit]), np.array([decision.confidence])
        return ChainAnswers(np.array([decision.answer]), exits, sureness, logits_1K)

    def _together(self, x_NCHW: Array, size: int, decider: Decider) -> ChainAnswers:
        """Run a batch; files of a fixed batch continue with all of it while any sample is left."""
        samples, filled = len(x_NCHW), self.runtime.batch is not None
        if samples < size:
            x_NCHW = np.concatenate([x_NCHW, np.repeat(x_NCHW[-1:], size - samples, axis=0)])
        decision, run = decider.batch(samples), self.runtime.start(x_NCHW)
        kept_NK: Array | None = None
        while len(rows := decision.rows):
            logits_NK = run.next()
            logits_BK = logits_NK[rows] if filled else logits_NK
            kept_NK = np.empty((samples, logits_BK.shape[1]), np.float32) if kept_NK is None else kept_NK
            leaving = decision.leave(logits_BK)
            kept_NK[rows[leaving]] = logits_BK[leaving]
            if not filled and len(decision.rows) and leaving.any():
                run.keep(~leaving)
        assert kept_NK is not None, "there is a sample"
        return ChainAnswers(decision.answers, decision.exits, decision.confidences, kept_NK)

    def _check(self, x_NCHW: Array) -> None:
        kind, shape = self._forms[0]
        alone = len(self._forms) == 1  # a fast path for the usual single input, since this runs before every inference
        fits = x_NCHW.dtype == kind and x_NCHW.shape[1:] == shape if alone else input_forms(x_NCHW) == self._forms
        if not fits or not len(x_NCHW):
            got = f"{x_NCHW.dtype} {x_NCHW.shape}"
            allowed = " and ".join(f"{kind} {('N', *shape)}" for kind, shape in self._forms)
            raise AdaptiveError("input", got, allowed=f"{allowed}, N from 1 on".replace("'", ""))

    def close(self) -> None:
        """Free the runtime's resources."""
        self.runtime.close()
