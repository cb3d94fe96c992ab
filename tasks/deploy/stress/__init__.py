"""A bundle under stress on this machine: an adaptive service answers while other processes come and go.
A second service answers the same images by the most accurate SubNet alone.
"""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.deploy.stress.results import StressReport
    from tasks.deploy.stress.settings import Settings
    from tasks.deploy.stress.stressing import run
    from tasks.deploy.stress.tables import stress_tables
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["Settings", "StressReport", "run", "stress_tables"]
