"""Networks in packages of the user's whose names are those of packages of the house, or of libraries."""

from pathlib import Path

from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training import base_network as base
from tests.support.finetune import own_code

project = own_code.project


def test_ranks_import_them_too(project: Path) -> None:
    model, settings = (
        ModelSettings(kind="callable", name="tasks.nets:make"),
        base.Settings(epochs=1, batch_size=1024, micro_batch=512, processes=1, device="cpu", recalibration_images=64),
    )
    folder = project / "out"
    folder.mkdir()
    assert base.run(settings, model, DataSettings(kind="digits", resolution=8), folder, Silent())["trained"]
