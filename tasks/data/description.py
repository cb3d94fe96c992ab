"""The data of a SuperNet, stored beside it: to check that other data have the same classes, size and scale."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from adaptive_runtime.samples.several import NumbersPreparation
from adaptive_runtime.samples.signals import Spectrogram
from adaptive_runtime.samples.texts import TextPreparation, Vocabulary
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Stored
from tasks.data.dataset import Dataset
from tasks.data.problems import CLASSIFICATION
from tasks.data.source import OtherInput, first_of

DATA_FILE = "data.json"
OPTIONS = "give the data options of the run that made it"
SAME_TRAINING = (
    "words, means and deviations are of the samples of training: keep that run's in train/, and give others in val/ "
    "and test/"
)


class DataDescription(Stored):
    """All properties of images and labels on which a trained network depends. `mean` and `deviation`: by channel.

    crop, interpolation: how images are brought to `resolution` (`tasks.data.source.Scaling`); None in files of version 1.
    """

    STAGE: ClassVar[str] = "compile"

    version: int = 2
    title: str
    class_names: tuple[str, ...]
    channels: int
    resolution: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    crop: str | None = None
    interpolation: str | None = None
    spectrogram: Spectrogram | None = None
    """The conversion of a signal to an image; written if data are signals."""
    vocabulary: Vocabulary | None = None
    """The words of texts; written if data are texts (then `resolution` is their number of words) or include texts."""
    inputs: dict[str, OtherInput | None] | None = None
    """The inputs of a sample by name, in their order, with None for images; written if there are several."""
    problem: str = CLASSIFICATION.name
    """The learning problem; written if it is not classification."""

    @classmethod
    def renewed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Accept version 1, which did not state how images are brought to `resolution`."""
        return {**content, "version": 2} if content.get("version") == 1 else content

    def told(self) -> dict[str, str]:
        """Properties that must be equal -> their values in words."""
        return {
            "problem": self.problem,
            "classes": f"{len(self.class_names)} classes ({first_of(self.class_names)})",
            "channels": f"channels {self.channels}",
            "resolution": f"resolution {self.resolution}",
            "mean": f"mean {list(self.mean)}",
            "deviation": f"deviation {list(self.deviation)}",
            "signals": "no signals" if self.spectrogram is None else self.spectrogram.line,
            "words": "no texts" if self.vocabulary is None else f"{self.vocabulary.size} words",
            "inputs": "one input" if self.inputs is None else f"inputs {_told_inputs(self.inputs)}",
        }

    def differing(self, other: "DataDescription") -> list[str]:
        """Names of the properties that differ."""
        pairs = {
            "problem": (self.problem, other.problem),
            "classes": (self.class_names, other.class_names),
            "channels": (self.channels, other.channels),
            "resolution": (self.resolution, other.resolution),
            "mean": (self.mean, other.mean),
            "deviation": (self.deviation, other.deviation),
            "signals": (self.spectrogram, other.spectrogram),
            "words": (self.vocabulary, other.vocabulary),
            "inputs": (list((self.inputs or {}).items()), list((other.inputs or {}).items())),
        }
        return [name for name, (own, others) in pairs.items() if own != others]

    def differs_by_training_alone(self, other: "DataDescription") -> bool:
        """Whether the same data with other training samples could have this description."""
        has_words = self.vocabulary is not None, other.vocabulary is not None
        return has_words[0] == has_words[1] and not self._untaught.differing(other._untaught)

    @property
    def _untaught(self) -> "DataDescription":
        """The description without values learned from training samples."""
        inputs = None if self.inputs is None else {name: _untaught(one) for name, one in self.inputs.items()}
        return self.model_copy(update={"vocabulary": None, "inputs": inputs})


def _told_inputs(inputs: Mapping[str, OtherInput | None]) -> str:
    return " and ".join(name if one is None else f"{name} ({one.line})" for name, one in inputs.items())


def _untaught(one: OtherInput | None) -> OtherInput | None:
    match one:
        case NumbersPreparation():
            return one.model_copy(update={"mean": (), "deviation": ()})
        case TextPreparation():
            return one.model_copy(update={"words": 0})
    return one


def describe(dataset: Dataset) -> DataDescription:
    """The properties of samples on which a network trained on them depends."""
    settings, problem = dataset.settings, dataset.problem
    found = DataDescription(
        title=settings.title,
        class_names=dataset.class_names,
        channels=dataset.channels,
        resolution=settings.resolution,
        mean=settings.per_channel(settings.mean),
        deviation=settings.per_channel(settings.deviation),
        crop=dataset.scaling.crop,
        interpolation=dataset.scaling.interpolation,
    )
    own: dict[str, Any] = {} if problem.name == CLASSIFICATION.name else {"problem": problem.name}
    if dataset.scaling.spectrogram is not None:
        own["spectrogram"] = dataset.scaling.spectrogram
    if dataset.scaling.vocabulary is not None:
        own["vocabulary"] = dataset.scaling.vocabulary
    if dataset.scaling.inputs is not None:
        own["inputs"] = dict(dataset.scaling.inputs)
    return found.model_copy(update=own)


def remember(dataset: Dataset, supernet: Path) -> None:
    """Write the description into a SuperNet's folder."""
    describe(dataset).write(supernet / DATA_FILE)


def remembered(supernet: Path) -> DataDescription | None:
    """The description of the data that a SuperNet was made for; None if the file does not exist. UserError for a damaged
    file.
    """
    file = supernet / DATA_FILE
    return DataDescription.read(file) if file.exists() else None


def check_same(dataset: Dataset, supernet: Path) -> None:
    """UserError if the data have other classes, size or scale than those the SuperNet was made for, if these are known."""
    known, given = remembered(supernet), describe(dataset)
    differing = [] if known is None else known.differing(given)
    if known is not None and differing:
        own, others = known.told(), given.told()
        raise UserError(
            f"data '{given.title}'",
            ", ".join(others[name] for name in differing),
            allowed=f"{', '.join(own[name] for name in differing)}, as the SuperNet in '{supernet}' was made for",
            next_step=SAME_TRAINING if known.differs_by_training_alone(given) else OPTIONS,
        )
