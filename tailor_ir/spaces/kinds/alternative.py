"""Kind `block`: the alternative that replaces a block. Choices are names; the last is the block itself."""

import numpy as np

from tailor_ir.spaces.draft import Draft, NamedBlock
from tailor_ir.spaces.kinds.record import Kind

ORIGINAL = "original"
"""The choice of the original block."""


def variable_name(prefix: str) -> str:
    """The name of the variable of a block, from the prefix of the names of the block's variables."""
    return f"{prefix}.{BLOCK.name}"


def _propose(draft: Draft, named: NamedBlock) -> None:
    own = [one for one in draft.alternatives if one.kind == BLOCK.name and one.value == named.block.exit]
    name = variable_name(named.prefix)
    asked = draft.selectors.alternatives(name, {named.block.kind}, [node.name for node in named.block.nodes])
    if not own or asked is None or not named.block.gives_exit:
        return
    variable = draft.add(name, BLOCK.name, BLOCK.scope, (*(one.choice for one in own), ORIGINAL))
    producers = (*(one.producer for one in own), named.block.exit)
    draft.select(named.block.exit, producers, (variable,), np.arange(len(producers)))


BLOCK = Kind(name="block", scope="block", phase=None, of_block=_propose)
