"""Results of a search, as SubNets of the bundle that a deployed model can serve."""

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from adaptive_runtime.bundle.bundles import (
    BlocksManifest,
    BundledNet,
    BundledSubNet,
    FoundSubNets,
    OpenBundle,
    SubNetLatency,
    SubNetMemory,
)
from adaptive_runtime.bundle.bundles.found import HERE
from adaptive_runtime.local_search.evaluation import OwnEvaluation
from adaptive_runtime.local_search.latencies import samples_ms
from adaptive_runtime.local_search.samples import OwnImages
from adaptive_runtime.local_search.sessions import FLOAT_BYTES, SegmentSessions
from adaptive_runtime.local_search.space import Floats, Path, latency_ms
from adaptive_runtime.pool import SubNetPool, Variant
from profiling_agents.messages import MIB

NOISY_SPREAD = 0.25
CHUNK = 16


def found_subnets(
    bundle: OpenBundle,
    blocks: BlocksManifest,
    paths: Sequence[Path],
    accuracies: Mapping[Path, float],
    evaluation: OwnEvaluation,
    sessions: SegmentSessions,
    ms_E: Floats,
) -> FoundSubNets:
    """SubNets by their paths, timed again as they are served, beside those of the bundle on the same images."""
    rows = []
    for path in paths:
        sessions.free()  # keep all segments of one SubNet in memory while it is timed
        rows.append(_row(blocks, path, accuracies[path], sessions, ms_E))
    sessions.free()
    return FoundSubNets(
        bundle=bundle.digest,
        images=len(evaluation.data),
        labels="largest" if evaluation.data.labels is None else "given",
        accuracies=_shipped(bundle, evaluation.data, evaluation.labels),
        subnets=tuple(rows),
    )


def _row(
    blocks: BlocksManifest,
    path: Path,
    accuracy: float,
    sessions: SegmentSessions,
    ms_E: Floats,
) -> BundledSubNet:
    segments = [blocks.segments[number] for number in path]
    config = blocks.config_of(path)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
    bytes_ = sum(one.bytes for one in segments)
    features = [int(np.prod([size or 1 for size in one.output.shape])) for one in segments]
    return BundledSubNet(
        digest=f"found-{digest}",
        config=config,
        input_shape=tuple(size or 1 for size in segments[0].input.shape),
        preparation=blocks.preparation,
        nets={
            "onnx": BundledNet(
                files=(*(one.file for one in segments), blocks.weights),
                input=segments[0].input,
                output=segments[-1].output,
                relative_difference=blocks.relative_difference,
            )
        },
        macs=sum(one.macs for one in segments),
        parameters=bytes_ // FLOAT_BYTES,
        accuracy={HERE: accuracy},
        latency=_latency(samples_ms(sessions, blocks, path)),
        predicted_ms=latency_ms(path, ms_E),
        memory=SubNetMemory(weights_mib=bytes_ / MIB, activations_mib=FLOAT_BYTES * 2 * max(features) / MIB),
    )


def _latency(times_ms: Sequence[float]) -> SubNetLatency:
    low_ms, middle_ms, high_ms = (float(one) for one in np.percentile(times_ms, (10, 50, 90)))
    spread = (high_ms - low_ms) / middle_ms
    noisy = spread > NOISY_SPREAD
    return SubNetLatency(p50_ms=middle_ms, p90_ms=high_ms, spread=spread, n=len(times_ms), noisy=noisy)


def _shipped(bundle: OpenBundle, data: OwnImages, labels_N: np.ndarray) -> dict[str, float]:
    """The accuracies of the bundle's own SubNets, with one at a time in memory."""
    pool = SubNetPool(bundle, ("onnx",), None, lambda line: None, prepares=False)
    found = {}
    for subnet in bundle.manifest.subnets:
        answerer = pool.answerer(Variant(subnet.digest))
        right = 0
        for start in range(0, len(data), CHUNK):
            x_NCHW = np.ascontiguousarray(data.images[start : start + CHUNK])
            right += int((answerer.answer(x_NCHW).answers == labels_N[start : start + CHUNK]).sum())
        found[subnet.digest] = right / len(data)
        pool.free(answerer)
    pool.close()
    return found
