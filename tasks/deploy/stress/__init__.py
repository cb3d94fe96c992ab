"""A bundle under stress on this machine: an adaptive service answers while other processes come and go.
A second service answers the same images by the most accurate SubNet alone.
"""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.deploy.settings import StressSettings as Settings
    from tasks.deploy.stress.results import StressReport, stress_tables
    from tasks.deploy.stress.stressing import run
else:
    __getattr__ = public_names(__name__, __file__)
