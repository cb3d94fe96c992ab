"""Stage "resources": what SubNets need on one device besides time: memory, multiply-accumulates, parameters, energy.

Nothing is run and no device is asked: all of it follows from the SuperNet and from what the settings say of the device.
"""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

import tailor_ir
from tailor_ir.steps import Rules
from tasks.artifacts import write_json
from tasks.predict.counts import mac_sums
from tasks.predict.energy import EnergyPredictor, EnergySettings
from tasks.predict.memory import MIB, MemoryPredictor

MACS_FILE = "macs.json"
PARAMETERS_FILE = "parameters.json"
ENERGY_FILE = "energy.json"
RESOURCES_FILE = "resources.json"


class Settings(EnergySettings):
    """A device's arithmetic and memory, and what its runtime does with memory (`tailor_ir.steps.Rules`)."""

    channel_block: int = Field(
        default=16, ge=1, description="channels that lie side by side; 8 with AVX2; 1: no blocks"
    )
    same_shape: bool = Field(default=True, description="tensors take the place of dead ones of the same shape")

    @property
    def rules(self) -> Rules:
        """Of the runtime."""
        return Rules(channel_block=self.channel_block, same_shape=self.same_shape)

    @property
    def energy(self) -> EnergySettings:
        """Of the device."""
        return EnergySettings.model_validate(self.model_dump(include=set(EnergySettings.model_fields)))


def run(settings: Settings, supernet: Path, out: Path) -> dict[str, Any]:
    """Write the predictors, and what they say of the largest and the smallest SubNet.

    Memory needs no file: `MemoryPredictor.compile` reads it off the SuperNet.
    """
    net = tailor_ir.load(supernet)
    memory, macs = MemoryPredictor.compile(net, settings.rules), mac_sums(net)
    parameters, energy = memory.parameters, EnergyPredictor.compile(net, settings.energy)
    macs.save(out / MACS_FILE)
    parameters.save(out / PARAMETERS_FILE)
    energy.save(out / ENERGY_FILE)
    configs = [net.max_config, net.min_config]
    codes = net.space.encode(configs)
    columns = {
        "memory_mib": memory.predict(codes),
        "peak_activations_mib": memory.peak_bytes(codes) / MIB,
        "peak_arena_mib": np.asarray([memory.arena_mib(code) for code in codes]),
        "parameters": parameters.predict(codes).astype(int),
        "macs": macs.predict(codes).astype(int),
        "energy_mj": energy.predict(codes),
    }
    rows = [
        {"kind": kind, "config": dict(config), "digest": net.space.digest(config)}
        | {name: values[index].item() for name, values in columns.items()}
        for index, (kind, config) in enumerate(zip(("largest", "smallest"), configs, strict=True))
    ]
    result = {"energy_from": "model", "subnets": rows}
    write_json(out / RESOURCES_FILE, result)
    return result
