"""Settings of the first stage of two: which part of the network is trained on which data before the whole is tuned."""

from pydantic import BaseModel, ConfigDict, Field

from tasks.data.settings import DataSettings
from tasks.finetune.settings import BaseSettings
from tasks.finetune.settings import Settings as FinetuneSettings
from tasks.models import ModelSettings


class Settings(BaseModel):
    """The backbone on the first data. `data` of the run are the second."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    backbone: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    """The path of the backbone in the network, as backbone or backbone.body; none: there is no first stage."""
    data: DataSettings = DataSettings(kind="glyphs")
    """The first data: images with a class each."""
    base: BaseSettings = BaseSettings()
    """Training of the backbone as a classifier, where the network has no weights."""
    finetune: FinetuneSettings = FinetuneSettings(teacher="base")
    """Training of the backbone's SuperNet. With teacher=base the largest SubNet, too, learns from what the backbone was, so
    that it stays near to what the head knows."""
    classifier_images: int = Field(default=2048, ge=2)
    """Training images of the first data that the linear layer over the backbone is fitted to."""

    def classifier(self, model: ModelSettings) -> ModelSettings:
        """The backbone of a network as a classifier, from random weights."""
        return model.model_copy(update={"backbone": self.backbone, "checkpoint": None})
