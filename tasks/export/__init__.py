"""Stage "export": files of every chosen SubNet, checked and measured on the device, each with a model card."""

from tasks.export.card import Provenance
from tasks.export.settings import Settings, Tolerance
from tasks.export.stage import DONE_FILE, EXPORTS_FILE, run

__all__ = ["DONE_FILE", "EXPORTS_FILE", "Provenance", "Settings", "Tolerance", "run"]
