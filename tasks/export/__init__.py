"""Stage "export": files of every chosen SubNet, checked and measured on the device, each with a model card."""

from pathlib import Path
from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.exports import EXPORTS_FILE
    from tasks.export.card import Provenance
    from tasks.export.readable import readable_names, write_readable
    from tasks.export.replacing import MeasuredSubstitutes, SearchedSubstitutes, Substitutes
    from tasks.export.settings import RuntimeSettings, Settings, Tolerance
    from tasks.export.stage import DONE_FILE, ExportRequest, run
else:
    __getattr__ = public_names(__name__, __file__)

EXAMPLES = Path(__file__).with_name("examples")
"""The folder with templates of programs that run exported files."""
