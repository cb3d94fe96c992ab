"""Which heavy libraries a command imports before it works anything."""

import os
import subprocess
import sys

import pytest

from tests.support.docs.documents import ROOT

HEAVY = ("torch", "torchvision", "timm", "onnx", "onnxruntime", "plotly", "matplotlib", "sklearn", "pymoo")
TABLE = "from flows.pipeline.stages import PIPELINE, RETARGETING"


@pytest.mark.few("import flows.cli.commands")
@pytest.mark.parametrize("code", [TABLE, "import flows.cli.commands", "import flows.pipeline.tailoring"])
def test_the_table_of_stages_and_the_commands_need_no_library_that_trains_measures_or_draws(code: str) -> None:
    script = f"import sys\n{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []
