"""Fronts that no search has found, for stages that come after it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tailor_ir
from tasks.base.schemas.stored import Predicted
from tasks.base.schemas.winners import FRONT_FILE, Front, Hypervolume, UniformSubNet, Winner

Config = Mapping[str, Any]


def predicted(net: tailor_ir.SuperNet, config: Config) -> Predicted:
    """A SubNet with predictions that are made up."""
    return Predicted(
        digest=net.space.digest(config),
        config=dict(config),
        predicted_ms=1.0,
        predicted_accuracy=0.5,
        predicted_score=0.5,
        macs=int(net.macs(config)),
        parameters=int(net.parameters(config)),
    )


def write_front(
    folder: Path, net: tailor_ir.SuperNet, winners: Sequence[tuple[Config, float]], baseline: Sequence[Config] = ()
) -> Front:
    """A front with a winner for each budget [ms] in `folder`."""
    rows = tuple(Winner(budget_ms=budget_ms, **predicted(net, config).to_json()) for config, budget_ms in winners)
    scaled = (UniformSubNet(scaled="all variables", **predicted(net, config).to_json()) for config in baseline)
    front = Front(
        device="here",
        winners=rows,
        front=tuple(dict.fromkeys(row.digest for row in rows)),
        fastest=predicted(net, net.min_config),
        largest=predicted(net, net.max_config),
        baseline=tuple(scaled),
        hypervolume=Hypervolume(value=0.0, reference_ms=1.0, reference_accuracy=0.0),
        evaluations=0,
        evaluated=0,
        whole_front=None,
        settings={},
    )
    front.write(folder / FRONT_FILE)
    return front
