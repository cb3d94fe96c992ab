"""Networks in packages of the user's whose names are those of packages of the house, or of libraries."""

from pathlib import Path

import pytest

BASE = """
from torch import nn

def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())
"""


NETS = """
import tasks.base
import tasks.base as renamed
from tasks import base
from tasks.base import *
from .base import conv as relative
from helpers import head
from solvers import tables

assert tasks.base is renamed is base and conv is relative

def make(num_classes, in_chans, width=8):
    from flows.late import KEPT  # imported when it is called
    return nn.Sequential(conv(in_chans, width), conv(width, width), head(width, num_classes))

nn = base.nn

class Own(nn.Sequential):
    pass

def own(num_classes, in_chans):
    return Own(*make(num_classes, in_chans))

def by_name(num_classes, in_chans):
    import importlib
    return importlib.import_module("tasks.own")

def wrong(num_classes, in_chans):
    from tasks.base import x
"""


HELPERS = """
from torch import nn
from tasks.base import conv

def head(width, classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with packages `tasks` and `flows` of the user's, and a module beside them."""
    files = {
        "tasks/base.py": BASE,
        "tasks/nets.py": NETS,
        "tasks/data.py": "from .nets import make as network\n",  # the house has tasks.base and tasks.data, too
        "flows/late.py": "KEPT = 1\n",
        "helpers.py": HELPERS,
        "conf/config.yaml": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path
