"""Runs the exported files of a folder with numpy and their own runtime alone, in a process of its own: `python -I FILE FOLDER`.

FOLDER: DIGEST.npz files with `inputs` (N, C, H, W) and `expected` (N, K). Prints the largest difference of each exported
file, over the largest number expected, as JSON. torch and this project cannot be imported here, but for torch by `--torch`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

PROJECT = {"adaptive_runtime", "tailor_ir", "tasks", "flows", "profiling_agents", "conf"}


class Refusal:
    """An import hook that finds nothing of this project, and no torch."""

    refused = PROJECT | (set() if "--torch" in sys.argv else {"torch"})

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name.split(".")[0] in cls.refused:
            raise ImportError(f"{name} is refused here")


sys.meta_path.insert(0, Refusal)

import numpy as np  # noqa: E402


def run_onnx(file: Path, inputs: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    batch = taken.shape[0] if isinstance(taken.shape[0], int) else len(inputs)
    pieces = [inputs[start : start + batch] for start in range(0, len(inputs), batch)]
    return np.concatenate([session.run(None, {taken.name: piece})[0] for piece in pieces])


def run_ncnn(file: Path, inputs: np.ndarray) -> np.ndarray:
    import ncnn

    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    assert net.load_param(str(file)) == 0
    assert net.load_model(str(file.with_suffix(".bin"))) == 0
    results = []
    for image in inputs:
        extractor = net.create_extractor()
        extractor.input("in0", ncnn.Mat(image).clone())
        results.append(np.array(extractor.extract("out0")[1]).ravel())
    return np.stack(results)


def run_torch(file: Path, inputs: np.ndarray) -> np.ndarray:
    import torch

    module = torch.export.load(file).module()
    with torch.inference_mode():
        outputs: np.ndarray = module(torch.from_numpy(inputs)).numpy()
    return outputs


RUNNERS = {".onnx": run_onnx, ".param": run_ncnn, **({".pt2": run_torch} if "--torch" in sys.argv else {})}


def main(folder: Path) -> None:
    found = {}
    for references in sorted(folder.glob("*.npz")):
        arrays = np.load(references)
        expected = arrays["expected"]
        for file in sorted(folder.rglob(f"{references.stem}*")):
            if file.suffix in RUNNERS:
                got = RUNNERS[file.suffix](file, arrays["inputs"])
                found[str(file.relative_to(folder))] = float(np.abs(got - expected).max() / np.abs(expected).max())
    assert not Refusal.refused & {name.split(".")[0] for name in sys.modules}
    print(json.dumps(found))


main(Path(sys.argv[1]))
