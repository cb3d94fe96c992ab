"""Settings with which another process loads the images of an evaluation."""

from tasks.base.schemas.stored import Record
from tasks.data import DataSettings, Split


class EvaluationRecipe(Record):
    """Content of `tasks.evaluation.subnets.EvaluationData`, without tensors.

    fingerprint: of the split and of the training split, by which a process notices that it has loaded other images. limit: most
    images to evaluate on; None: the whole split. device: kind of torch's device. files: a digest of the listing of the data's
    folder; if it differs, data are loaded anew. The other fields are as in `EvaluationData`.
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
