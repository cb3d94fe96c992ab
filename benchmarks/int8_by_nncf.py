"""int8 by NNCF beside int8 by onnxruntime, both run by OpenVINO: accuracy, latency and bytes.

    python -m benchmarks.int8_by_nncf --nncf PYTHON [--networks resnet26 mobilenetv2] [--rounds 5] [--work DIR] [--json FILE]
                                      [--markdown]

PYTHON: an interpreter that has nncf and openvino (`python -m venv DIR && DIR/bin/pip install nncf openvino`); NNCF is no
dependency of the project. The networks, their images and their largest SubNets are those of `benchmarks.int8`; a DIR that it
has worked in is gone on from. NNCF quantises the same fp32 file with as many training images, with its defaults and with its
preset for activations that are not symmetric ("mixed"). One thread, the smallest p50 of rounds in which the files take turns.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CHILD = "--child"
RUNS = 40
TESTED = 2400


def quantise_by_nncf(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """In the interpreter with NNCF: rows of the fp32 file, the QDQ file and NNCF's, with latency and accuracy."""
    import nncf
    import openvino

    core = openvino.Core()
    images = np.load(folder / "images.npz")
    calibration, test, labels = images["calibration"], images["test"], images["labels"]
    models = {name: core.read_model(folder / f"{name}.onnx") for name in ("fp32", "onnxruntime")}
    files = {name: (folder / f"{name}.onnx").stat().st_size for name in models}
    for name, preset in (("nncf", "PERFORMANCE"), ("nncf, mixed", "MIXED")):
        data = nncf.Dataset([image[None] for image in calibration])
        choice = getattr(nncf.QuantizationPreset, preset)
        model = nncf.quantize(core.read_model(folder / "fp32.onnx"), data, preset=choice, subset_size=len(calibration))
        path = folder / f"{preset}.xml"
        openvino.save_model(model, path)
        models[name] = core.read_model(path)
        files[name] = path.stat().st_size + path.with_suffix(".bin").stat().st_size
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = {name: core.compile_model(model, "CPU", options) for name, model in models.items()}
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, each in compiled.items():
            found[name].append(_p50_ms(each.create_infer_request(), test[:1]))
    return [
        {
            "by": name,
            "p50_ms": min(found[name]),
            "bytes": files[name],
            "accuracy": float(np.mean([np.argmax(each([x[None]])[0]) for x in test] == labels)),
        }
        for name, each in compiled.items()
    ]


def _p50_ms(request: Any, x: np.ndarray) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        request.infer([x])
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times[RUNS // 4 :]))


def write_files(name: str, work: Path, folder: Path) -> None:
    """In the project's interpreter: the fp32 file, the QDQ file, and images."""
    import tailor_ir
    from benchmarks.bars import Terminal
    from benchmarks.int8 import COMMON, NETWORKS
    from benchmarks.trained import train
    from tasks.data import load_splits
    from tasks.evaluation.conversion import onnx_of
    from tasks.evaluation.quantise import Settings, quantise
    from tasks.evaluation.subnets import EvaluationData, statistics_of

    trained = train([*COMMON, *NETWORKS[name]], work / name)
    net, splits = tailor_ir.load(trained.supernet), load_splits(trained.data)
    validation = EvaluationData(
        splits["validation"], splits["train"], recalibration_images=trained.predict.recalibration_images
    )
    data = {"validation": validation, "test": validation.of(splits["test"])}
    config = net.max_config
    statistics = statistics_of(net, config, validation)
    model = onnx_of(net, config, statistics, 1)
    (folder / "fp32.onnx").write_bytes(model)
    quantised = quantise(net, config, statistics, model, Settings(), data, Terminal())
    (folder / "onnxruntime.onnx").write_bytes(quantised.content)
    height, width = net.input_shape(config)[-2:]
    calibration = np.concatenate([x.numpy() for x in validation.calibration((height, width))])
    batches = list(data["test"].batches((height, width)))
    test, labels = (np.concatenate([each[at].numpy() for each in batches])[:TESTED] for at in (0, 1))
    np.savez(folder / "images.npz", calibration=calibration, test=test, labels=labels)


def measure(name: str, python: str, rounds: int, work: Path) -> list[dict[str, Any]]:
    """The rows of one network."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_files(name, work, folder)
        command = [python, str(Path(__file__).resolve()), CHILD, str(folder), "--rounds", str(rounds)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [{"network": name, **row} for row in json.loads((folder / "rows.json").read_text())]


HEADS = ("network", "int8 by", "p50, ms", "MB", "test accuracy")


def _show(rows: Sequence[dict[str, Any]], *, markdown: bool) -> None:
    from benchmarks.tables import show

    cells = [
        (row["network"], row["by"], f"{row['p50_ms']:.3f}", f"{row['bytes'] / 1e6:.2f}", f"{row['accuracy']:.2%}")
        for row in rows
    ]
    show(HEADS, cells, markdown=markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        CHILD, type=Path, metavar="DIR", help="quantise the files of a folder; the script calls itself so"
    )
    parser.add_argument("--nncf", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--networks", nargs="+", default=["resnet26", "mobilenetv2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if options.child:
        (options.child / "rows.json").write_text(json.dumps(quantise_by_nncf(options.child, options.rounds)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        rows = [row for name in options.networks for row in measure(name, options.nncf, options.rounds, work)]
    _show(rows, markdown=options.markdown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
