"""Kind `exit`: the computed part of the network. Choices are places in order of depth; the last is the whole network."""

import numpy as np

from tailor_ir.spaces.draft import Draft
from tailor_ir.spaces.kinds.record import Kind

LAST = "last"
"""The choice of the whole network."""


def _propose(draft: Draft) -> None:
    asked = draft.selectors.exits()
    own = [one for one in draft.alternatives if one.kind == EXIT.name]
    if not own or asked is None:
        return
    variable = draft.add(EXIT.name, EXIT.name, EXIT.scope, (*(one.choice for one in own), LAST))
    answer = own[0].value
    producers = (*(one.producer for one in own), answer)
    draft.select(answer, producers, (variable,), np.arange(len(producers)))


EXIT = Kind(name="exit", scope="global", phase=None, of_network=_propose)
