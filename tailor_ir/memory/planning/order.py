"""The order in which a runtime executes steps."""

from tailor_ir.memory.planning.drafts import Drafts, OpenStep


def ordered(drafts: Drafts) -> list[OpenStep]:
    """Steps depth first from the outputs. Among several inputs, the one with the last position comes first."""
    read = {source for draft in drafts.steps for source in _read_by(drafts, draft)}
    leaves = [draft for draft in drafts.steps if read.isdisjoint(draft.writes)]
    stack = [(draft, False) for draft in sorted(leaves, key=lambda d: d.position)]
    seen: set[int] = set()
    ordered: list[OpenStep] = []
    while stack:
        draft, done = stack.pop()
        if done:
            ordered.append(draft)
        elif id(draft) not in seen:
            seen.add(id(draft))
            stack.append((draft, True))
            makers = {id(d): d for name in _read_by(drafts, draft) if (d := drafts.by_output.get(name)) is not None}
            stack += [(maker, False) for maker in sorted(makers.values(), key=lambda d: d.position)]
    return ordered


def _read_by(drafts: Drafts, draft: OpenStep) -> list[str]:
    """The values that a step reads, and their other producers in some SubNets."""
    return [source for name in draft.reads for source in (name, *(other for other, _ in drafts.sources.all_of(name)))]
