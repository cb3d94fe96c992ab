"""What leaving early saves on devices, and how often its promise is broken: the product's own exits, on glyphs.

    python -m benchmarks.exit_savings [--work DIR] [--splits 200] [--images 2000] [--until STEP] [--markdown] [--json FILE]
        [OVERRIDE …]

A slim ResNet-26 (that of `benchmarks.int8`) learns ten characters of glyphs as `autotailor finetune space.exits=auto` does
it; OVERRIDEs go there. `autotailor export` then makes thresholds for the whole network (epsilon 1 point, confidence 95 %) on
onnxruntime and ncnn, one thread, batch 1: *expected* and *p99* latency are those of the test images at the measured latencies
of exits, heads on the way counted; *saved* is against the same network without exits. --until stops earlier: before a device
is asked, or before splits are drawn.

*Chains*: the network as a chain of segments and heads, as a device has it (`adaptive_runtime`). --images test images go one by
one through it, and leave early, and through the network without exits: in onnxruntime a session of one file with the same
settings, in ncnn the last answer of the same net. Both take turns of 50 images, since caches hold weights from one image to the
next where a device runs one of them; latencies are those of each call from Python.

The promise, as `benchmarks.exit_promise` counts it: from each of many random splits of the held-out and the test images
together, thresholds are made on as many images as were held out, and applied to the rest, or (*in truth*) to the population
that they were drawn from with replacement. The comparison is thresholds by calibrated probability alone.

Bars: 40 % of the mean latency saved, broken in at most 5 % of 200 splits. DIR keeps everything; a second run goes on from
there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import ncnn
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import tailor_ir
from adaptive_runtime.bundle.chains import ChainAnswers, ChainFormat, ExitChain, NcnnChain, session_options
from adaptive_runtime.exits import Thresholds
from benchmarks.bars import Terminal
from benchmarks.exit_chains import write_chain
from benchmarks.exit_promise import judged
from benchmarks.int8 import NETWORKS
from benchmarks.trained import Trained, train
from tasks.data import load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.exits import HeldOut, PromiseSettings
from tasks.exits.latency import with_exit
from tasks.exits.policies import POLICIES_FILE, Policies, SubnetPolicy
from tasks.exits.stage import answers_of
from tasks.measuring.jobs import pieces

DEVICES = ("onnxruntime", "ncnn")
TRAINED = (
    "data=glyphs",
    "data.images=16000",
    "data.classes=10",
    "data.resolution=32",
    "data.validation_share=0.25",
    "data.test_share=0.25",
    "data.workers=1",
    "base.processes=1",
    "finetune.processes=1",
    "model=timm",
    *NETWORKS["resnet26"],
    "space.exits=auto",
)
DEPLOYED = (
    "search=exact",
    "refine.candidates=1",
    "exits.subnets=1",
    "export.formats=[onnx,ncnn]",
    "export.bundle=true",
)
FORMS: dict[str, ChainFormat] = {"onnxruntime": "onnx", "ncnn": "ncnn"}
TURN = 50
"""Images; the first turn warms up."""
SAVED, BROKEN = 0.4, 0.05
"""The bars."""
Run = Callable[[NDArray[np.float32]], object]
Cells = tuple[str, ...]
Rows = list[Cells]


def deployed(words: Sequence[str], output: Path) -> dict[str, Policies]:
    """`autotailor export` of what was trained: thresholds by device."""
    command = [sys.executable, "-m", "flows.cli", "export", f"output_dir={output.resolve()}", *words, *DEPLOYED]
    subprocess.run([*command, f"device=[{','.join(DEVICES)}]"], check=True)
    found = {}
    for name in DEVICES:
        latest = max(output.glob(f"stages/exits/{name}/*/{POLICIES_FILE}"), key=lambda file: file.stat().st_mtime)
        found[name] = Policies.read(latest)
    return found


def saved_row(name: str, policy: SubnetPolicy) -> dict[str, Any]:
    """What leaving early comes to on one device."""
    tested = policy.tested
    assert tested is not None, policy.reason
    assert policy.thresholds is not None
    return {
        "runtime": name,
        "measure": policy.thresholds["measure"],
        "accuracy": tested.accuracy,
        "lost_points": tested.lost_points,
        "whole_ms": tested.whole_ms,
        "expected_ms": tested.expected_ms,
        "p99_ms": tested.p99_ms,
        "saved": tested.saved,
        "exits": [one.to_json() for one in policy.exits],
    }


def chained_row(name: str, trained: Trained, policy: SubnetPolicy, images: int) -> dict[str, Any]:
    """Test images one by one through a chain that leaves early and through the network without exits, in turn."""
    net, test = tailor_ir.load(trained.supernet), load_splits(trained.data)["test"]
    assert net.space.digest(policy.config) == net.space.digest(net.max_config), "the whole network has the policy"
    each = chain.from_iterable(zip(x.numpy(), y.tolist(), strict=True) for x, y in test.batches(64))
    taken, thresholds = list(islice(each, images)), Thresholds.from_json(json.dumps(policy.thresholds).encode(), name)
    times_ms: tuple[list[float], list[float]] = ([], [])
    right = 0
    with tempfile.TemporaryDirectory() as folder:
        write_chain(net, FORMS[name], Path(folder))
        with ExitChain.open(folder, thresholds) as early:
            runs = (early.infer, whole_of(net, early, Path(folder)))
            for number, turn in enumerate(pieces(taken[:TURN] + taken, TURN)):
                for place in (0, 1) if number % 2 else (1, 0):
                    for x_CHW, label in turn:
                        start_ns = time.perf_counter_ns()
                        found = runs[place](x_CHW[None])
                        times_ms[place].append((time.perf_counter_ns() - start_ns) / 1e6)
                        if place == 0 and number:
                            assert isinstance(found, ChainAnswers)
                            right += int(found.answers[0]) == label
    early_ms, whole_ms = (np.array(one[TURN:]) for one in times_ms)
    return {
        "runtime": name,
        "images": len(taken),
        "accuracy": right / len(taken),
        "whole_ms": float(whole_ms.mean()),
        "early_ms": float(early_ms.mean()),
        "early_p99_ms": float(np.quantile(early_ms, 0.99)),
        "whole_p99_ms": float(np.quantile(whole_ms, 0.99)),
        "saved": 1 - float(early_ms.mean() / whole_ms.mean()),
    }


def whole_of(net: tailor_ir.SuperNet, early: ExitChain, folder: Path) -> Run:
    """The network without exits: a session of one file with the same settings; in ncnn the last answer of the same net."""
    runtime = early.runtime
    if isinstance(runtime, NcnnChain):
        last = runtime.outputs[-1]

        def run(x_1CHW: NDArray[np.float32]) -> object:
            extractor = runtime.net.create_extractor()
            extractor.input(runtime.inputs[0], ncnn.Mat(x_1CHW[0]).clone())
            return extractor.extract(last)

        return run
    file = folder / "whole.onnx"
    net.export(net.max_config, file, fold_batch_norm=True)
    options = session_options(early.manifest.settings)
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0].name
    return lambda x_1CHW: session.run(None, {given: x_1CHW})


def pooled(trained: Trained, policy: SubnetPolicy) -> tuple[HeldOut, int]:
    """Answers of all exits to the held-out and the test images together, and how many were held out."""
    net, splits = tailor_ir.load(trained.supernet), load_splits(trained.data)
    data = EvaluationData(splits["validation"], splits["train"], recalibration_images=512)
    exits = [with_exit(net.space, policy.config, name) for name in net.exits(policy.config)]
    both = [answers_of(net, exits, data.of(splits[split]), Terminal()) for split in ("validation", "test")]
    logits_NEK, labels_N = (np.concatenate(parts) for parts in zip(*both, strict=True))
    latency_ms_E = np.array([one.latency_ms for one in policy.exits])
    return HeldOut(logits_NEK=logits_NEK, labels_N=labels_N, latency_ms_E=latency_ms_E), len(splits["validation"])


def promise_rows(trained: Trained, found: dict[str, Policies], splits: int) -> list[dict[str, Any]]:
    """How often the promise is broken, by runtime and method."""
    rows = []
    for name, policies in found.items():
        images, held_out = pooled(trained, policies.subnets[0])
        settings = PromiseSettings(epsilon=policies.epsilon, confidence=policies.confidence)
        rows += [{"runtime": name, **row} for row in judged(images, held_out, settings, splits)]
    return rows


def exits_table(result: dict[str, Any]) -> tuple[Cells, Rows]:
    """Every exit on every device."""
    head = ("runtime", "exit", "test accuracy", "alone, ms", "with heads before, ms", "leave there", "accuracy there")
    return head, [
        (
            row["runtime"],
            one["exit"],
            f"{one['accuracy']['test']:.2%}",
            f"{one['alone_ms']:.3f}",
            f"{one['latency_ms']:.3f}",
            f"{one['share']:.1%}",
            "–" if one["share_accuracy"] is None else f"{one['share_accuracy']:.2%}",
        )
        for row in result["saved"]
        for one in row["exits"]
    ]


def saved_table(result: dict[str, Any]) -> tuple[Cells, Rows]:
    """What leaving early comes to."""
    head = ("runtime", "measure", "test accuracy", "points lost", "whole, ms", "expected, ms", "p99, ms", "saved")
    return (*head, f"holds (>= {SAVED:.0%})"), [
        (
            row["runtime"],
            row["measure"],
            f"{row['accuracy']:.2%}",
            f"{row['lost_points']:.2f}",
            f"{row['whole_ms']:.3f}",
            f"{row['expected_ms']:.3f}",
            f"{row['p99_ms']:.3f}",
            f"{row['saved']:.1%}",
            "yes" if row["saved"] >= SAVED else "NO",
        )
        for row in result["saved"]
    ]


def chained_table(result: dict[str, Any]) -> tuple[Cells, Rows]:
    """What chains take that leave early."""
    head = ("runtime", "images", "test accuracy", "without exits, ms", "p99", "leaving early, ms", "p99, ms", "saved")
    return (*head, f"holds (>= {SAVED:.0%})"), [
        (
            row["runtime"],
            f"{row['images']:,}",
            f"{row['accuracy']:.2%}",
            f"{row['whole_ms']:.3f}",
            f"{row['whole_p99_ms']:.3f}",
            f"{row['early_ms']:.3f}",
            f"{row['early_p99_ms']:.3f}",
            f"{row['saved']:.1%}",
            "yes" if row["saved"] >= SAVED else "NO",
        )
        for row in result["chains"]
    ]


def promise_table(result: dict[str, Any]) -> tuple[Cells, Rows]:
    """How often the promise is broken."""
    head = ("runtime", "thresholds", "splits", "broken in truth", "on the rest", "points lost", "saved")
    return (*head, f"holds (<= {BROKEN:.0%} in truth)"), [
        (
            row["runtime"],
            row["method"],
            str(row["splits"]),
            f"{row['broken in truth']:.1%}",
            f"{row['broken on the rest']:.1%}",
            f"{100 * row['lost, mean']:.2f}",
            f"{row['latency saved']:.1%}",
            "yes" if row["broken in truth"] <= BROKEN else "NO",
        )
        for row in result["promise"]
    ]


def show(result: dict[str, Any], *, markdown: bool) -> None:
    """All tables, for the terminal or for a page."""
    for head, rows in (exits_table(result), saved_table(result), chained_table(result), promise_table(result)):
        if markdown:
            lines = ["| " + " | ".join(cells) + " |" for cells in (head, tuple("---" for _ in head), *rows)]
            print("\n".join(lines) + "\n")
        else:
            table = Table(*head)
            for row in rows:
                table.add_row(*row)
            Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--images", type=int, default=2000, help="of the test images, through chains")
    parser.add_argument("--until", choices=("trained", "deployed", "promise"), default="promise")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        words = (*TRAINED, *options.overrides)
        trained = train(words, work)
        if options.until == "trained":
            return
        found = deployed(words, work)
        rows = [saved_row(name, policies.subnets[0]) for name, policies in found.items()]
        promise = promise_rows(trained, found, options.splits) if options.until == "promise" else []
        chains = [chained_row(name, trained, policies.subnets[0], options.images) for name, policies in found.items()]
        result = {"saved": rows, "chains": chains, "promise": promise}
    show(result, markdown=options.markdown)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
