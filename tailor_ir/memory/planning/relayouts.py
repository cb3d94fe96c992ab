"""Steps that change the layout of a value."""

from tailor_ir.memory.layouts import Layout
from tailor_ir.memory.planning.drafts import LAST, Drafts, OpenStep
from tailor_ir.memory.planning.transposes import is_view


def add_relayouts(drafts: Drafts) -> None:
    """Add the steps that change layouts: one step for each value and layout, shared by all its readers."""
    for draft in tuple(drafts.steps):
        renamed = {
            name: _relayout(drafts, name, draft.wanted, _made_at(drafts, name, draft))
            for name in draft.reads
            if _may_differ(drafts, name, draft.wanted)
        }
        draft.reads = [renamed.get(name, name) for name in draft.reads]
        draft.in_place = tuple(renamed.get(name, name) for name in draft.in_place)


def _relayout(drafts: Drafts, name: str, wanted: Layout, position: float) -> str:
    new = f"{name}/{wanted}"
    if new not in drafts.layouts:
        drafts.enter(OpenStep(position, None, [name], (new,), relayout=True), wanted)
        moved = [u.outputs[0] for u in drafts.consumers.get(name, ()) if u.op == "Transpose" and is_view(drafts, u)]
        drafts.typed_like[new] = name
        drafts.new_axes[new] = drafts.axes[moved[0] if moved and wanted == "plain" else name]
    return new


def _made_at(drafts: Drafts, name: str, reader: OpenStep) -> float:
    """The position of a change of layout: into blocks directly before the reader, out of blocks after all other steps."""
    if drafts.layouts[name] in ("plain", "rows"):
        return reader.position - 0.5
    return LAST + drafts.by_output[name].position


def _may_differ(drafts: Drafts, name: str, wanted: Layout) -> bool:
    """Whether the producer's layout of a value differs from the reader's in some SubNet."""
    layouts = {drafts.layouts[source] for source, _ in drafts.sources.all_of(name)}
    return any(own != wanted and {own, wanted} != {"plain", "rows"} for own in layouts)
