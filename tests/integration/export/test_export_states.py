"""Networks with states keep them between calls on the device, as torch does over the sequence."""

from pathlib import Path

import numpy as np
import pytest
import torch

import tailor_ir
from adaptive_runtime import StatefulNetwork
from adaptive_runtime.base.errors import AdaptiveError
from tests.integration.export.test_export_types import COUNT, exported, network
from tests.unit.data.test_files_with_state import CELL, SHAPES, F, S, written


@pytest.mark.parametrize("streams", [1, 3])
def test_states_of_an_exported_file_are_kept_between_calls(streams: int, tmp_path: Path) -> None:
    file = written(tmp_path / "cell.onnx", CELL, SHAPES, zero=np.zeros(1, np.int64))
    steps = np.random.default_rng(1).normal(size=(COUNT, F)).astype(np.float32)
    found = exported(tmp_path, file, {"x": steps}, "model.constants={sr:2}", f"export.dynamic_batch={streams > 1}")
    loaded = tailor_ir.load(tmp_path / "supernet")
    for card in found.subnets:
        assert card.states == {"h": "hn"}
        assert "`h` is `hn` of the step before" in (tmp_path / "out" / f"{card.digest}.md").read_text()
        stream = StatefulNetwork(tmp_path / "out" / f"{card.digest}.onnx")
        module, state = loaded.build(card.config).eval(), torch.zeros(streams, 1, S)
        sequence = steps[: streams * (COUNT // streams)].reshape(-1, streams, F)
        answered = []
        for x in sequence:
            with torch.no_grad():
                y, state = module(torch.from_numpy(x), state)
            answered.append(stream({"x": x}))
            assert answered[-1].keys() == {"y"}
            np.testing.assert_allclose(answered[-1]["y"], y, atol=1e-4)
        assert np.abs(stream({"x": sequence[0]})["y"] - answered[0]["y"]).max() > 1e-4
        stream.reset()
        np.testing.assert_array_equal(stream({"x": sequence[0]})["y"], answered[0]["y"])
        named = StatefulNetwork(tmp_path / "out" / f"{card.digest}.onnx", {"h": "hn"})
        np.testing.assert_array_equal(named({"x": sequence[0]})["y"], answered[0]["y"])
        with pytest.raises(AdaptiveError, match="allowed: INPUT of x, h: OUTPUT of y, hn"):
            StatefulNetwork(tmp_path / "out" / f"{card.digest}.onnx", {"h": "other"})
        with pytest.raises(AdaptiveError, match="inputs h; allowed: x"):
            stream({"h": sequence[0]})
        with pytest.raises(AdaptiveError, match=rf"5 samples for {streams} streams; allowed: one for each; reset"):
            stream({"x": np.zeros((5, F), np.float32)})


def test_a_file_that_tells_no_states_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(AdaptiveError, match="it tells no states; name them: states="):
        StatefulNetwork(network(tmp_path, "float", {"x": [12]}))
    (tmp_path / "net.onnx").write_bytes(b"damaged")
    with pytest.raises(AdaptiveError, match="onnxruntime cannot read it"):
        StatefulNetwork(tmp_path / "net.onnx")
