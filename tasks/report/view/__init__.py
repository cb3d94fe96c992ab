"""View: a SuperNet as a page for people. It works offline and needs nothing but the file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tailor_ir
from tailor_ir import Choice
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.pages import environment, script, style
from tasks.base.pages.text import amount, count
from tasks.report.view.gather import Shape, SupernetView, gather

PACKAGE = "tasks.report.view"
MOST_CHOICES = 8
MOST_LABELS = 6


def render(view: SupernetView) -> str:
    """The whole page. The template escapes every text."""
    templates = environment(PACKAGE)
    templates.filters |= {"shape": shape, "shapes": shapes, "choices": choices, "some": some, "share": share}
    page: str = templates.get_template("page.html").render(
        title=view.title,
        view=view,
        cards=cards(view),
        numbers={variable.name: i for i, variable in enumerate(view.variables)},
        most_parameters=max((block.parameters.largest for block in view.blocks), default=0),
        most_macs=max((block.macs.largest for block in view.blocks), default=0),
        style=style(PACKAGE),
        script=script(PACKAGE, "highlight.js"),
    )
    return page


def cards(view: SupernetView) -> list[tuple[str, str, str]]:
    """The few numbers at the top: label, value, note."""
    own = [
        ("different SubNets", count(str(view.distinct)), f"of {count(str(view.codes))} codes"),
        ("variables", str(len(view.variables)), f"{view.modifications} modifications (choices in all)"),
    ]
    sizes = (("parameters", view.parameters), ("MACs", view.macs))
    return own + [
        (
            label,
            amount(size.largest),
            f"in the largest SubNet; {amount(size.smallest)} in the smallest, {share(size.smallest, size.largest):.3g} %",
        )
        for label, size in sizes
    ]


def shape(sizes: Shape) -> str:
    """The shape as text, such as 64 × 56 × 56; "one number" without axes."""
    return " × ".join(map(str, sizes)) or "one number"


def shapes(found: Sequence[Shape]) -> list[str]:
    """Each shape once, with its number of occurrences."""
    return [shape(s) + (f" ({n} of them)" if n > 1 else "") for s, n in Counter(found).items()]


def choices(values: Sequence[Choice]) -> str:
    """All choices; if there are many, the first ones, the last and their number."""
    texts = [value if isinstance(value, str) else f"{value:.4g}" for value in values]
    if len(texts) <= MOST_CHOICES:
        return ", ".join(texts)
    return f"{', '.join(texts[:3])}, … {texts[-1]} ({len(texts)})"


def some(labels: Sequence[str]) -> str:
    """All labels; if there are many, the first ones and their number."""
    if len(labels) <= MOST_LABELS:
        return ", ".join(labels)
    return f"{', '.join(labels[: MOST_LABELS - 1])} … ({len(labels)})"


def share(part: float, whole: float) -> float:
    """The percentage of the whole; 0 if the whole is 0."""
    return 100 * part / whole if whole else 0.0


def run(supernet: Path, title: str, page: Path) -> None:
    """Write the page of the SuperNet in folder `supernet`. UserError when it cannot be written."""
    html = render(gather(tailor_ir.load(supernet), title))
    try:
        write_bytes(page, html.encode())
    except OSError as error:
        raise UserError("--view", f"'{page}' cannot be written ({error.strerror})") from error
