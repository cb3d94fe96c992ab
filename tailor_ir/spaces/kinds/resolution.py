"""Kinds `resolution` and `sequence_length`: height and width of the network's images, or the length of its token sequences."""

from tailor_ir.errors import SpaceError
from tailor_ir.spaces.draft import Draft
from tailor_ir.spaces.kinds.record import Kind
from tailor_ir.spaces.variables import NumberChoice
from tailor_ir.structure.resolutions import Resolutions

BUCKETS = (0.125, 0.25, 0.5, 0.75)
"""Proposed lengths as shares of the network's own length; shorter sequences are padded to the next proposed length."""


def _propose_resolution(draft: Draft) -> None:
    if not draft.graph.sequences:
        _propose(draft, RESOLUTION)


def _propose_length(draft: Draft) -> None:
    if draft.graph.sequences:
        _propose(draft, SEQUENCE_LENGTH)


def _propose(draft: Draft, kind: Kind) -> None:
    name = kind.name
    asked = draft.selectors.choices(name)
    if asked is None:
        return
    reason = draft.axis_map.resolution_frozen
    if reason:
        if asked:
            raise SpaceError(f"space: {name}={list(asked)}: the {name.replace('_', ' ')} cannot change ({reason})")
        draft.dropped.append(f"{name}: cannot change ({reason})")
        return
    base = draft.input_spatial[0]
    resolutions = Resolutions(draft.axis_map, draft.input_spatial)
    proposed = resolutions.proposed() if kind is RESOLUTION else resolutions.proposed(BUCKETS)
    candidates = asked or proposed
    legal: list[NumberChoice] = []
    for size in candidates:
        problem = resolutions.problem(int(size))
        if problem:
            near = ", ".join(str(s) for s in proposed)
            raise SpaceError(f"space: {name} {size}: {problem}; allowed: up to {base}, for example {near}")
        legal.append(int(size))
    if len(legal) == 1:
        draft.dropped.append(f"{name}: {resolutions.problem(base // 2) or 'no other is legal'}")
    if base not in legal:
        raise SpaceError(f"space: {name}={list(candidates)}: must include the network's own, {base}")
    if len(legal) > 1:
        draft.resolution = draft.add(name, name, kind.scope, legal)


RESOLUTION = Kind(name="resolution", scope="global", phase=None, uniform="resolution", of_network=_propose_resolution)
SEQUENCE_LENGTH = Kind(
    name="sequence_length", scope="global", phase=None, uniform="resolution", of_network=_propose_length
)
