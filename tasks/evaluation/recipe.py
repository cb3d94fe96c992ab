"""The settings by which another process loads the images of an evaluation."""

from tasks.data import DataSettings, Split
from tasks.schemas.stored import Record


class EvaluationRecipe(Record):
    """What `tasks.evaluation.subnets.EvaluationData` is made of, without a tensor.

    fingerprint: of the split and of the training split, by which a process notices that it has loaded other images. limit:
    images to evaluate on, at most; None: the whole split. device: kind of torch's device. files: a digest
    of the listing of the data's folder; where it differs, data are loaded anew. The rest is as there.
    """

    data: DataSettings
    split: Split
    fingerprint: tuple[str, str]
    limit: int | None
    recalibration_images: int
    batch_size: int
    features_mib: float
    device: str
    files: str = ""
