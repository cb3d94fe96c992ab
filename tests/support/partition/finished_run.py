"""The output folder of a run whose devices have tables, without a measurement: times follow from MACs."""

from pathlib import Path

import torch

import tailor_ir
from tasks.base.artifacts import RESULT_FILE
from tasks.measuring.lut import DeviceKey, Entry, Lut
from tests.support.ir.networks import small_net

RATES = {"phone": 2e5, "server": 2e7}
"""MACs in a millisecond."""
STEP_MS = 0.02
ENERGY_MJ = 0.5


def finished_run(folder: Path) -> tailor_ir.SuperNet:
    """Write the SuperNet and the tables; the SuperNet."""
    sample = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    net = tailor_ir.compile(small_net(channels=8, hidden=32, blocks=3), sample)
    stage = folder / "stages" / "compile" / "0"
    stage.mkdir(parents=True)
    net.save(stage / "supernet")
    (stage / RESULT_FILE).write_text("{}")
    for name, rate in RATES.items():
        stage = folder / "stages" / "profile" / name / "0"
        stage.mkdir(parents=True)
        key = DeviceKey(backend="onnxruntime", build="1", precision="fp32", threads=1, fingerprint=name)
        Lut.open(stage / "lut", key).append(
            Entry(
                digest=feature.digest,
                operator=feature.operator,
                feature="{}",
                state="ok",
                p50_ms=STEP_MS + feature.macs / rate,
                p90_ms=STEP_MS + feature.macs / rate,
                spread=0.0,
                n=5,
                noisy=False,
                measured_at="2026-01-01T00:00:00+00:00",
                energy_mj=ENERGY_MJ if name == "phone" else None,
            )
            for feature in net.unique_operators()
        )
        (stage / RESULT_FILE).write_text("{}")
    return net
