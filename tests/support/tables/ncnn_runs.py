"""Models of ncnn, run in this process."""

from pathlib import Path

import ncnn
import numpy as np

from tasks.evaluation.ncnn.files import NcnnFiles


def run_ncnn(files: NcnnFiles, inputs: list[np.ndarray], outputs: int, folder: Path) -> list[np.ndarray]:
    """The outputs `out0`, `out1`, … (1, …) of a model from inputs (1, …), exactly in fp32. folder: for its files."""
    (folder / "m.param").write_bytes(files.param)
    (folder / "m.bin").write_bytes(files.bin)
    net = ncnn.Net()
    net.opt.num_threads = 1
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    assert net.load_param(str(folder / "m.param")) == 0
    assert net.load_model(str(folder / "m.bin")) == 0
    extractor = net.create_extractor()
    for index, array in enumerate(inputs):
        extractor.input(f"in{index}", ncnn.Mat(array[0]).clone())
    results = []
    for index in range(outputs):
        status, mat = extractor.extract(f"out{index}")
        assert status == 0
        results.append(np.array(mat)[np.newaxis])
    return results
