"""Kind `depth`: number of blocks at the end of a stage that are skipped. Readers of a skipped block's exit read its entry."""

from collections.abc import Sequence

import numpy as np

from tailor_ir.errors import SpaceError
from tailor_ir.spaces.draft import Draft
from tailor_ir.spaces.kinds.record import Kind
from tailor_ir.spaces.variables import NumberChoice
from tailor_ir.structure.regions import Stage


def _propose(draft: Draft, stage: Stage) -> None:
    if not stage.trailing:
        return
    name = f"{stage.name}.depth"
    asked = draft.selectors.choices(name, {block.kind for block in stage.blocks})
    if asked is None:
        return
    deepest = min(stage.trailing, max(2, len(stage.blocks) // 2))
    choices = asked or tuple(range(-deepest, 1))
    _check(name, choices, stage)
    if len(choices) == 1:
        return
    variable = draft.add(name, DEPTH.name, DEPTH.scope, tuple(int(choice) for choice in choices))
    for left, block in enumerate(reversed(stage.blocks[-stage.trailing :]), start=1):  # blocks from this one to the end
        skipped = np.asarray([-int(choice) >= left for choice in choices])
        if skipped.any():
            draft.select(block.exit, (block.exit, block.entry), (variable,), skipped.astype(np.int64))


def _check(name: str, choices: Sequence[NumberChoice], stage: Stage) -> None:
    for choice in choices:
        if choice != int(choice) or not -stage.trailing <= choice <= 0:
            allowed = ", ".join(str(-k) for k in range(stage.trailing + 1))
            raise SpaceError(
                f"space: {name}={choice} leaves no block or skips one that changes axes "
                f"({len(stage.blocks)} blocks); allowed: {allowed}"
            )
    if 0 not in choices:
        raise SpaceError(f"space: {name}={list(choices)}: must include 0, the network as it is")


DEPTH = Kind(name="depth", scope="stage", phase=2, seen=True, of_stage=_propose)
