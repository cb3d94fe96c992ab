"""View: a SuperNet as a page for people. It works offline and needs nothing but the file."""

from pathlib import Path

import tailor_ir
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.report.view.data import SupernetView
from tasks.report.view.gather import gather
from tasks.report.view.page import render

__all__ = ["SupernetView", "gather", "render", "run"]


def run(supernet: Path, title: str, page: Path) -> None:
    """Write the page of the SuperNet in folder `supernet`. UserError when it cannot be written."""
    html = render(gather(tailor_ir.load(supernet), title))
    try:
        write_bytes(page, html.encode())
    except OSError as error:
        raise UserError("--view", f"'{page}' cannot be written ({error.strerror})") from error
