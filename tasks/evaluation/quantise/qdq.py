"""QDQ files by onnxruntime: int8 weights per channel and symmetric, uint8 activations whose ranges come from images.

A QDQ file has each tensor in int8 between QuantizeLinear and DequantizeLinear; runtimes fuse these pairs into the operators
around them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    create_calibrator,
    quantize_static,
)
from onnxruntime.quantization.calibrate import save_tensors_data

from tasks.evaluation.quantise.guards import kept_in_fp32
from tasks.evaluation.quantise.layers import BETWEEN, FLOAT_RESULTS, FOLDED, LAYERS, quantised_nodes

OPERATORS = [*LAYERS, *FOLDED, *BETWEEN]
PREPARED = {"onnx.quant.pre_process": "onnxruntime.quant"}
"""Marker for onnxruntime that a model needs no preparation: constants and BatchNorm are already folded."""


Feeds = Mapping[str, NDArray[np.generic]]
"""The inputs of one run by name."""


class _Reader(CalibrationDataReader):
    """Batches for the calibration, one after the other."""

    def __init__(self, feeds: Iterable[Feeds]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, NDArray[np.generic]] | None:
        feeds = next(self._feeds, None)
        return None if feeds is None else dict(feeds)


@dataclass(frozen=True, slots=True)
class Quantiser:
    """Quantises one SubNet's models of any batch. `ranges`: a file with the least and the largest number of each tensor."""

    ranges: Path
    reduce_range: bool

    @classmethod
    def calibrated(cls, model: bytes, feeds: Iterable[Feeds], folder: Path, *, reduce_range: bool) -> "Quantiser":
        """Calibrate by running the fp32 model on inputs of its shapes. The files stay in `folder`."""
        path, ranges = folder / "calibrated.onnx", folder / "ranges.json"
        path.write_bytes(model)
        calibrator = create_calibrator(
            path, OPERATORS, str(folder / "augmented.onnx"), providers=["CPUExecutionProvider"]
        )
        calibrator.collect_data(_Reader(feeds))
        save_tensors_data(calibrator.compute_data(), ranges)
        return cls(ranges, reduce_range)

    def quantise(self, model: bytes, kept: Collection[str] = (), *, goes_on: bool = False) -> bytes:
        """The QDQ file of a calibrated fp32 model; the layers `kept` stay in fp32.
        goes_on: its results are used in int8.
        """
        loaded = onnx.load_from_string(model)
        nodes = quantised_nodes(loaded.graph, kept, [one.name for one in loaded.graph.output] if goes_on else ())
        if not nodes:
            return model
        onnx.helper.set_model_props(loaded, PREPARED)
        out = self.ranges.with_name("quantised.onnx")
        quantize_static(
            loaded,
            out,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=OPERATORS,
            nodes_to_quantize=nodes,
            per_channel=True,
            reduce_range=self.reduce_range,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibration_cache_path=self.ranges,
            extra_options={
                "OpTypesToExcludeOutputQuantization": list(FLOAT_RESULTS),
                "ForceQuantizeNoInputCheck": goes_on,
            },
        )
        return kept_in_fp32(out.read_bytes(), kept)
