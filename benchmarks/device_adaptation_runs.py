"""Weights that adapt, measured in a process without torch, for `benchmarks.device_adaptation`.

    python -m benchmarks.device_adaptation_runs JOB RESULT     (JSON files)

Legend: N images, B of them at once, K classes.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import adaptive_runtime
from adaptive_runtime import DeployedModel, WeightOptions
from adaptive_runtime.weights import AdaptedSubnet, NormStatistics
from adaptive_runtime.weights.weights import AdaptedFiles, KeptWeights
from tests.support.threads import beside

WRONG = ("narrow", "wide", "shuffled", "of other images")
EVERYTHING = 1_000_000
Images = np.ndarray


def wrong(source: NormStatistics, how: str, other: NormStatistics, seed: int) -> NormStatistics:
    """Statistics that no image has."""
    if how == "of other images":
        return other
    if how == "shuffled":
        order = np.random.default_rng(seed).permutation(len(source.mean_F))
        return NormStatistics(source.mean_F[order], source.variance_F[order])
    factor = np.float32(0.05 if how == "narrow" else 30.0)
    return NormStatistics(source.mean_F, source.variance_F * factor)


def opened(bundle: Path, **options: object) -> DeployedModel:
    """A model that looks at all that it serves. options: of weights."""
    return adaptive_runtime.load(
        bundle, weights=WeightOptions.model_validate({"waiting_images": EVERYTHING, **options})
    )


def answered(model: DeployedModel, x_NCHW: Images) -> np.ndarray:
    """Classes (N,) while the model looks at the images."""
    found = []
    for start in range(0, len(x_NCHW), 16):
        found.append(model.infer(x_NCHW[start : start + 16]).classes)
        assert model.weights is not None
        model.weights.wait()
    return np.concatenate(found)


@contextmanager
def requests(model: DeployedModel, x_1CHW: Images, pause_s: float | None) -> Iterator[list[float]]:
    """Requests of a thread, one behind the other with a pause, and their latencies [ms]. None: there are none."""
    over, found = threading.Event(), list[float]()

    def ask() -> None:
        while pause_s is not None and not over.wait(pause_s):
            found.append(model.infer(x_1CHW).latency_ms)

    with beside(ask, over=over):
        yield found


def times(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Milliseconds to look at an image, to align it, of a step by image, and from statistics to a session that serves."""
    rows = []
    with adaptive_runtime.load(job["bundle"]) as model:
        digest = model.state.serving.digest
        subnet = AdaptedSubnet(model.pool, digest, WeightOptions(), None)
        weights, size = subnet.weights, subnet.weights.network.images
        with np.load(job["images"]) as arrays:
            x_BCHW, logits_BK = arrays["x"], arrays["logits"]
        weights.adapt(x_BCHW[:size])
        seen = weights.look(x_BCHW[:1])
        weights.example = x_BCHW[:1], seen.logits_BK
        for name, pause_s in (("no requests", None), ("a request each 100 ms", 0.1)):
            look_ms, align_ms, step_ms, renewed_ms, computed_ms = [], [], [], [], []
            with requests(model, x_BCHW[:1], pause_s) as latencies_ms:
                for _ in range(job["repeats"]):
                    start_s = time.perf_counter()
                    weights.network.features(weights.network.look(x_BCHW[:size], weights.source))
                    look_ms.append(1e3 * (time.perf_counter() - start_s) / size)
                    align_ms.append(aligning_ms(subnet, x_BCHW[:size]))
                    statistics, number = weights.statistics, weights.steps
                    start_s = time.perf_counter()
                    weights.adapt(x_BCHW[:size])
                    step_ms.append(1e3 * (time.perf_counter() - start_s) / size)
                    weights.restore(statistics, number)
                    start_s = time.thread_time()
                    subnet.serve_adapted()
                    computed_ms.append(1e3 * (time.thread_time() - start_s))
                    renewed_ms.append(subnet.state.renewed_ms or 0.0)
            got_BK = model.infer(x_BCHW[:size]).logits
            rows.append(
                {
                    "serving": name,
                    "look_ms": float(np.median(look_ms)),
                    "align_ms": float(np.median(align_ms)),
                    "step_ms": float(np.median(step_ms)),
                    "renewed_ms": float(np.median(renewed_ms)),
                    "renewed_most_ms": float(np.max(renewed_ms)),
                    "renewed_cpu_ms": float(np.median(computed_ms)),
                    "request_ms": float(np.median(latencies_ms)) if latencies_ms else None,
                    "difference_from_torch": float(np.abs(got_BK - logits_BK[:size]).max() / np.abs(logits_BK).max()),
                }
            )
    return rows


def aligning_ms(subnet: AdaptedSubnet, x_BCHW: Images) -> float:
    """Milliseconds to align an image that comes alone, a mean over some."""
    alignment = subnet.weights.alignment
    assert alignment is not None
    start_s = time.perf_counter()
    for x_CHW in x_BCHW:
        alignment(x_CHW[None])
    return 1e3 * (time.perf_counter() - start_s) / len(x_BCHW)


def gradient_step_ms(job: dict[str, Any]) -> float:
    """Milliseconds of a step by gradients, by image, a median."""
    with adaptive_runtime.load(job["bundle"]) as model, np.load(job["images"]) as arrays:
        subnet = AdaptedSubnet(model.pool, model.state.serving.digest, WeightOptions(method="tent"), None)
        x_BCHW, found = arrays["x"][: subnet.weights.network.images], []
        subnet.weights.adapt(x_BCHW)
        for _ in range(job["repeats"]):
            start_s = time.perf_counter()
            subnet.weights.adapt(x_BCHW)
            found.append(1e3 * (time.perf_counter() - start_s) / len(x_BCHW))
    return float(np.median(found))


def undone(job: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """For each stream and each way to be wrong: images until the wrong weights were undone; None: they were not.

    Where images drift, the statistics follow them meanwhile, so that a verdict can find them right again: `kept`.
    """
    with adaptive_runtime.load(job["bundle"]) as model:
        digest, pool = model.state.serving.digest, model.pool
        subnet = AdaptedSubnet(pool, digest, WeightOptions(), None)
        net = pool.bundle.manifest.by_digest[digest].nets["onnx"].adaptable
        assert net is not None
        belongs = pool.bundle.manifest.files[net.source].sha256
        weights = subnet.weights
        for stream in job["streams"]:
            with np.load(stream["file"]) as arrays:
                x_NCHW, other_NCHW = arrays["x"], arrays["other"]
            weights.reset()
            for start in range(0, len(other_NCHW) - 15, 16):
                weights.adapt(other_NCHW[start : start + 16])
            for how in WRONG:
                state = folder / f"{stream['name']}-{stream['seed']}-{how}"
                files = AdaptedFiles(state)
                kept = KeptWeights(wrong(weights.source, how, weights.statistics, stream["seed"]), 3)
                files.write(digest, belongs, kept)
                yield {"stream": stream["name"], "seed": stream["seed"], "wrong": how, **_until(job, state, x_NCHW)}


def _until(job: dict[str, Any], state: Path, x_NCHW: Images) -> dict[str, Any]:
    with opened(Path(job["bundle"]), state=state) as model:
        assert model.weights is not None
        model.weights.wait()
        (subnet,) = model.weights.state.subnets.values()
        assert subnet.adapted, "wrong weights serve first"
        answered(model, x_NCHW)
        ends = ("undone", "over", "aligned", "kept")
        events = [one for one in model.weights.state.events if one.kind in ends]
        return {"images": events[0].image if events else None, "kind": events[0].kind if events else None}


def errors(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For each stream: errors in points of the source and of the model that follows it, and what this does.

    Also where images stay as they come, and statistics alone follow them.
    """
    for stream in job["streams"]:
        with np.load(stream["file"]) as arrays:
            x_NCHW, label_N = arrays["x"], arrays["labels"]
        with adaptive_runtime.load(job["bundle"]) as model:
            source = model.infer(x_NCHW).classes
        with opened(Path(job["bundle"]), align=False) as model:
            unaligned = answered(model, x_NCHW)
        with opened(Path(job["bundle"])) as model:
            adapted = answered(model, x_NCHW)
            assert model.weights is not None
            events = model.weights.state.events
        wrongs = [100 * float((found != label_N).mean()) for found in (source, unaligned, adapted)]
        kinds = [event.kind for event in events]
        yield {
            "stream": stream["name"],
            "seed": stream["seed"],
            "source_points": wrongs[0],
            "statistics_points": wrongs[1],
            "device_points": wrongs[2],
            "torch_points": stream["torch_points"],
            "drift_at": next((one.image for one in events if one.kind == "drift"), None),
            "aligned_at": next((one.image for one in events if one.kind == "aligned"), None),
            "kept_at": next((one.image for one in events if one.kind == "kept"), None),
            "kept": kinds.count("kept"),
            "undone": kinds.count("undone"),
        }


def gradient_points(job: dict[str, Any]) -> Iterator[float]:
    """For each stream: errors in points of the model that follows it by gradients, too."""
    for stream in job["streams"]:
        with np.load(stream["file"]) as arrays, opened(Path(job["bundle"]), method="tent") as model:
            yield 100 * float((answered(model, arrays["x"]) != arrays["labels"]).mean())


def steps(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For each stream: the largest differences from torch after the same steps; of logits over the largest one."""
    with adaptive_runtime.load(job["bundle"]) as model:
        weights = AdaptedSubnet(model.pool, model.state.serving.digest, WeightOptions(), None).weights
        for stream in job["streams"]:
            with np.load(stream["file"]) as arrays:
                weights.reset()
                for x_BCHW in arrays["steps"]:
                    weights.adapt(x_BCHW)
                logits_BK = weights.look(arrays["x"][:64]).logits_BK
                own = np.concatenate(weights.statistics)
                yield {
                    "stream": stream["name"],
                    "seed": stream["seed"],
                    "statistics": float(np.abs(own - arrays["torch_statistics"]).max()),
                    "logits": float(np.abs(logits_BK - arrays["torch_logits"]).max() / np.abs(logits_BK).max()),
                }


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    found: dict[str, Any] = {"times": times(job["times"])}
    small = job["small"]
    found["steps"] = list(steps(small))
    found["errors"] = list(errors(small))
    found["undone"] = list(undone(small, Path(result_file).parent / "states"))
    assert "torch" not in sys.modules, "the device needs no torch"
    found["torch_imported"] = False
    if job["gradients"]:
        found["gradient_step_ms"] = gradient_step_ms(job["times"])
        for row, points in zip(found["errors"], gradient_points(small), strict=True):
            row["tent_points"] = points
    Path(result_file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
