"""Settings of the first of two stages: the part of the network, and the data it is trained on before the whole is tuned."""

from pydantic import BaseModel, ConfigDict, Field

from tasks.data.settings import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training.finetune.settings import BaseSettings
from tasks.training.finetune.settings import Settings as FinetuneSettings


class Settings(BaseModel):
    """The backbone and the first data. The run's `data` are the second."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    backbone: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    """Path of the backbone in the network, such as backbone or backbone.body; None: there is no first stage."""
    data: DataSettings = DataSettings(kind="glyphs")
    """The first data: images with a class each."""
    base: BaseSettings = BaseSettings()
    """Training of the backbone as a classifier, if the network has no weights."""
    finetune: FinetuneSettings = FinetuneSettings(teacher="base")
    """Training of the backbone's SuperNet. With teacher=base the largest SubNet, too, learns from the original backbone, so
    that it stays close to the features that the head knows.
    """
    classifier_images: int = Field(default=2048, ge=2)
    """Training images of the first data for fitting the linear layer over the backbone."""

    def classifier(self, model: ModelSettings) -> ModelSettings:
        """Settings of a network's backbone as a classifier, from random weights."""
        return model.model_copy(update={"backbone": self.backbone, "checkpoint": None})
