"""Kind `resolution`: height and width of the network's input."""

from tailor_ir.errors import SpaceError
from tailor_ir.spaces.draft import Draft
from tailor_ir.spaces.kinds.record import Kind
from tailor_ir.spaces.variables import NumberChoice
from tailor_ir.structure.resolutions import Resolutions


def _propose(draft: Draft) -> None:
    asked = draft.selectors.choices("resolution")
    if asked is None:
        return
    reason = draft.axis_map.resolution_frozen
    if not reason and len(set(draft.input_spatial)) != 1:
        reason = f"the input is not square: {draft.input_spatial}"
    if reason:
        if asked:
            raise SpaceError(f"space: resolution={list(asked)}: the resolution cannot change ({reason})")
        draft.dropped.append(f"resolution: cannot change ({reason})")
        return
    base = draft.input_spatial[0]
    resolutions = Resolutions(draft.axis_map, base)
    candidates = asked or resolutions.proposed()
    legal: list[NumberChoice] = []
    for size in candidates:
        problem = resolutions.problem(int(size))
        if problem:
            near = ", ".join(str(s) for s in resolutions.proposed())
            raise SpaceError(f"space: resolution {size}: {problem}; allowed: up to {base}, for example {near}")
        legal.append(int(size))
    if len(legal) == 1:
        draft.dropped.append(f"resolution: {resolutions.problem(base // 2) or 'no other is legal'}")
    if base not in legal:
        raise SpaceError(f"space: resolution={list(candidates)}: must include the network's own, {base}")
    if len(legal) > 1:
        draft.resolution = draft.add(RESOLUTION.name, RESOLUTION.name, RESOLUTION.scope, legal)


RESOLUTION = Kind(name="resolution", scope="global", phase=None, uniform="resolution", of_network=_propose)
