"""Settings of the data, and of drifting image streams."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from adaptive_runtime.samples.inputs import MOST_WORDS
from tasks.base.artifacts import OutsideKey
from tasks.base.earlier import name_now
from tasks.base.own_code import is_function_name, is_live
from tasks.data.problems.restoration import MOST_UPSCALE, SUPER_RESOLUTION

CorruptionName = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "gaussian_blur",
    "defocus_blur",
    "fog",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg",
]
StreamKind = Literal["clean", "continual", "mixed", "gradual", "correlated", "returning", "shares"]


class DriftSettings(BaseModel):
    """A stream of labelled images for experiments with adapting methods."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    stream: StreamKind = "continual"
    """clean: the data unchanged. continual: one corruption after another. mixed: a random corruption for each image. gradual:
    each corruption gets stronger and weaker again. correlated: continual, with images of one class in runs. returning:
    continual, with clean images after each corruption. shares: clean images with changing class shares.
    """
    corruptions: tuple[CorruptionName, ...] = Field(default=get_args(CorruptionName), min_length=1)
    """The corruptions, in their order."""
    severity: int = Field(default=5, ge=1, le=5)
    """Severity of corruptions; in gradual streams the largest."""
    images: int = Field(default=300, ge=1)
    """Number of images for each corruption, each phase of clean images, and each set of class shares."""
    phases: int = Field(default=10, ge=1)
    """Number of phases in streams without corruptions (clean, shares)."""
    batch_size: int = Field(default=64, ge=1, le=64)
    concentration: float = Field(default=0.1, gt=0)
    """Concentration of the Dirichlet distribution of class shares; the smaller, the more unequal (correlated, shares)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order, the class shares and the corruptions."""


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


class Kind(NamedTuple):
    """A kind of data. resolution: default height and width in pixels; for texts, the number of words. images: default number of
    drawn or synthesised samples. problem: the learning problem; with boxes, the detector's head completes it.
    """

    resolution: int = 32
    problem: str = "classification"
    images: int = 20_000
    has_files: bool = False


KINDS = {
    "digits": Kind(),
    "noisy_digits": Kind(images=4 * 1797),
    "glyphs": Kind(64),
    "noisy_glyphs": Kind(64, "restoration"),
    "small_glyphs": Kind(32, "restoration"),
    "glyph_scenes": Kind(64, "segmentation"),
    "glyph_boxes": Kind(96, "detection"),
    "sounds": Kind(64, images=6000),
    "motion": Kind(32, images=6000),
    "imagefolder": Kind(224, has_files=True),
    "parquet": Kind(224, has_files=True),
    "torchvision": Kind(32, has_files=True),
    "coco": Kind(320, "detection", has_files=True),
    "voc": Kind(320, "detection", has_files=True),
    "masks": Kind(256, "segmentation", has_files=True),
    "pairs": Kind(128, "restoration", has_files=True),
    "wavfolder": Kind(64, has_files=True),
    "series": Kind(32, has_files=True),
    "texts": Kind(32, images=9000),
    "tagged_texts": Kind(32, "tagging", images=9000),
    "jsonl": Kind(64, has_files=True),
    "tagged_jsonl": Kind(64, "tagging", has_files=True),
    "image_and_motion": Kind(48, images=6000),
    "table": Kind(224, has_files=True),
    "own": Kind(224),
    "unlabelled": Kind(224, "fidelity", has_files=True),
}
if TYPE_CHECKING:
    DataKind = str
else:
    DataKind = Literal[tuple(KINDS)]


def _of(kind: str | None) -> Kind:
    """The facts of a kind; defaults for an unknown one, whose error comes later."""
    return KINDS.get(kind or "", Kind())


def _by_kind(default: Callable[[str | None], Any]) -> Callable[[dict[str, Any]], Any]:
    """A default factory of a field that depends on the kind."""
    return lambda known: default(known.get("kind"))


TEACHER_FILE = "teacher.onnx"
"""The network as it is given, in the folder of a SuperNet whose targets are its answers."""
LEAST_SIDE, MOST_SIDE = 8, 1024
"""Limits of `resolution`."""
UPSCALED = ("small_glyphs", "pairs")
"""Kinds whose targets are images that may be larger than the images."""
SOUNDED = ("sounds", "wavfolder")
"""Kinds of sounds; their images are grey spectrograms."""
CLIPS_S = {"sounds": 1.0, "wavfolder": 1.0, "motion": 5.12, "series": 5.12, "image_and_motion": 2.56, "table": 1.0}
"""Length of a signal [s], for kinds whose images are spectrograms, or that have a signal beside an image."""
IN_LINES = ("jsonl", "tagged_jsonl")
"""Kinds of texts in files of JSON lines."""
WRITTEN = ("texts", "jsonl", "tagged_texts", "tagged_jsonl")
"""Kinds of texts, which networks take as numbers of words."""
WORDED = (*WRITTEN, "table")
"""Kinds that have texts, or may have texts beside other inputs."""
SEVERAL = ("image_and_motion", "table")
"""Kinds whose samples have, or may have, several inputs."""
OPTIONS_OF_KINDS = {
    "name": ("torchvision", "own"),
    "options": ("own", "unlabelled"),
    "names": ("own", "unlabelled"),
    "shape": ("unlabelled",),
    "tokens": ("unlabelled",),
    "labelled": ("unlabelled", "own"),
    "window": ("unlabelled",),
}
"""Options of a few kinds."""
PUBLISHED = ("cifar10", "cifar100", "imagenet")
"""Data sets of torchvision."""
BOXED = ("glyph_boxes", "coco", "voc")
"""Kinds whose images have boxes with classes; the others have one class per image."""
Metric = Literal["accuracy", "macro_f1", "mean_iou", "map50", "coco_map", "psnr", "word_accuracy", "own", "fidelity"]
METRICS: dict[str, tuple[Metric, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "several_classes": ("accuracy",),
    "segmentation": ("mean_iou",),
    "detection": ("map50", "coco_map"),
    "restoration": ("psnr",),
    "tagging": ("word_accuracy",),
    "own": ("own",),
    "fidelity": ("fidelity",),
}
"""The metrics of each kind of learning problem; the first is the default."""


class VocabularySettings(BaseModel):
    """The words of the training split that a network knows; all others are the same to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    most_words: int = Field(default=8000, ge=1, le=MOST_WORDS)
    """Largest number of words; the most frequent ones are kept."""
    least_count: int = Field(default=2, ge=1)
    """Least number of occurrences of a known word."""


class TextFields(BaseModel):
    """Names of the fields of a line."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    text: str = Field(default="text", min_length=1)
    label: str = Field(default="label", min_length=1)
    """Field of the class: a name, or a whole number."""


OutputKind = Literal["classes", "sequence", "embedding", "boxes", "values"]
"""How outputs are compared: the most likely class along axis 1; the most likely symbols of a sequence, without repeats and
blanks; the direction of a vector; the boxes of a head of YOLO; or values, by their error."""


class OwnProblem(BaseModel):
    """A learning problem that does not follow from the kind of data."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: Literal["own", "fidelity"]
    """own: by the user's loss and score. fidelity: without targets, by the answers of the network as it is given."""
    loss: str | None = None
    """own: `module:function` or `FILE.py:function`; loss(outputs, targets) gives the mean over the batch."""
    score: str | None = None
    """own: likewise; score(outputs, targets) gives a number in [0, 1] for each sample, higher is better. fidelity: the true
    score on `data.labelled`; null: accuracy."""
    outputs: dict[str, OutputKind | None] | None = None
    """Names of the network's outputs, in their order, if loss and score take them by name; and, for fidelity, how each is
    compared (null: found from the network's answers)."""

    @property
    def functions(self) -> dict[str, str]:
        """The names of the user's functions by their options."""
        named = {"problem.loss": self.loss, "problem.score": self.score}
        return {option: name for option, name in named.items() if name is not None}

    @model_validator(mode="after")
    def _check(self) -> "OwnProblem":
        for name in ("loss", "score"):
            function = getattr(self, name)
            if function is None and self.kind == "own":
                raise ValueError("problem=own needs problem.loss and problem.score")
            if function is not None and self.kind == "fidelity" and name == "loss":
                raise ValueError("problem=fidelity takes no loss: it follows from the answers of the network")
            if function is not None and not is_function_name(function):
                raise ValueError(f"problem.{name}={function} is not of the form module:function or FILE.py:function")
        return self


ColumnName = Annotated[str, Field(min_length=1)]
TableInput = Literal["image", "sound", "text"] | Annotated[tuple[ColumnName, ...], Field(min_length=1)]
"""`image`, `sound`: a column of this name contains file names; `text`: it contains texts. Else columns of numbers, one
input.
"""
ArgumentName = Annotated[str, Field(pattern=r"^[a-z]\w*$")]


class GivenNetwork(BaseModel):
    """The network in an .onnx file that samples without labels are for, as far as they depend on it; runs set it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[Path, OutsideKey("the network's own key counts")]
    inputs: tuple[str, ...]
    """Names of the inputs without a constant value, in the file's order."""
    states: dict[str, str]
    """Inputs whose value is that of an output for the sample before: {INPUT: OUTPUT}."""
    constants: dict[str, float]
    """Values of the other inputs."""


class DataSettings(BaseModel):
    """The place of the data, their splits, and the size and scale in which networks get them."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: DataKind = "noisy_digits"
    path: Annotated[Path | None, OutsideKey("its files count: names, sizes and times of change")] = None
    name: str | None = None
    """The data set of torchvision: cifar10, cifar100 or imagenet (kind torchvision). The function that gives the samples, as
    `module:function` or `FILE.py:function` (kind own).
    """
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function (kind own). Steps of pictures that are not RGB in [0, 1], scaled as a whole: colours,
    fit, scaled, interpolation, fill, largest, fields of `PictureSteps` (kind unlabelled).
    """
    names: tuple[str, ...] | None = None
    """Names of the inputs, in the order of the network's arguments: keys of samples that are dictionaries (kind own), or arrays
    in the file (kind unlabelled).
    """
    shape: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Channels, height and width of pictures, or height, width and channels, or the shape of a sound or a text (kind
    unlabelled); null: those of the .onnx file's input, or `channels` and `resolution`.
    """
    tokens: str | None = None
    """The numbers of a text's line (kind unlabelled): `bytes`, those of UTF-8, or the path of a `vocabulary.json`, its words.
    """
    class_order: tuple[int, ...] | None = None
    """The order of a trained network's outputs, if it is not that of the data's classes: for each output the number of its
    class, from 0 in the order of the classes' names. Class names, and so cards, then have the network's order.
    """
    window: int | None = Field(default=None, ge=1)
    """Number of samples after which the states of a network begin at zeros anew, if samples follow one another (kind
    unlabelled); null: never.
    """
    unroll: int | None = Field(default=None, ge=1)
    """Number of samples over which SubNets keep their own states in training, if states are the network's own (kind
    unlabelled); 1: before each sample they have those of the given network; null: whole windows, or the largest part up to 64
    that divides them. In scores they keep them over whole windows.
    """
    network: GivenNetwork | None = None
    """The network that samples without labels are for; runs set it."""
    own_problem: OwnProblem | None = None
    """The problem, if it does not follow from the kind (options of `problem`)."""
    labelled: Annotated[Path | None, OutsideKey("nothing is trained or chosen by it")] = None
    """Samples with targets, by which the true score is stated beside the fidelity (problem fidelity): a folder with a folder of
    pictures for each class, or a file of arrays, of which `labels` or `targets` are the targets.
    """
    teacher: Annotated[Path | None, OutsideKey("the network's own key counts")] = None
    """The network whose answers are the targets (problem fidelity), as an .onnx file; runs set it."""
    head: Literal["ssdlite", "retinanet", "fcos"] | None = Field(
        default_factory=_by_kind(lambda kind: "ssdlite" if kind in BOXED else None)
    )
    """The head of detectors that are trained with boxes (kinds glyph_boxes, coco and voc)."""
    metric: Metric = Field(
        default_factory=lambda known: METRICS[
            one.kind if (one := known.get("own_problem")) else _of(known.get("kind")).problem
        ][0]
    )
    """The score that a run optimises and reports, called "accuracy" everywhere. `accuracy` (top-1) and `macro_f1`: for samples
    with one class each; `mean_iou`: for masks; `map50` and `coco_map` (the mean over overlaps from 0.5 to 0.95): for boxes;
    `psnr`: for restored images; `word_accuracy`: for texts with a class for each word; `own` and `fidelity`: by the problem of
    this name.
    """
    images: int = Field(default_factory=_by_kind(lambda kind: _of(kind).images), ge=1)
    """Number of drawn images, or synthesised signals, in all splits together (kinds without files)."""
    classes: int | None = Field(default=None, ge=2)
    """Number of characters or kinds of signals, the first ones; null: all, or 10 of 33 (glyph_scenes and glyph_boxes), or 4
    (image_and_motion).
    """
    clip_s: float | None = Field(default_factory=_by_kind(lambda kind: CLIPS_S.get(kind or "")), gt=0.05, le=3600)
    """Length of the signal in an image, in seconds (kinds sounds, wavfolder, motion and series), or beside it
    (image_and_motion, and sounds of kind table).
    """
    vocabulary: VocabularySettings | None = Field(
        default_factory=_by_kind(lambda kind: VocabularySettings() if kind in WORDED else None)
    )
    """The words that networks know (kinds of texts, and texts of kind table)."""
    words: int | None = Field(default_factory=_by_kind(lambda kind: 32 if kind == "table" else None), ge=1, le=1024)
    """Words of a text beside other inputs (kind table), for all SubNets; longer texts are cut."""
    fields: TextFields | None = Field(default_factory=_by_kind(lambda kind: TextFields() if kind in IN_LINES else None))
    """Names of the fields of a line (kinds jsonl and tagged_jsonl)."""
    inputs: dict[ArgumentName, TableInput] | None = None
    """The inputs of a sample by the names of the network's arguments, in their order (kind table): `image` or `sound`, whose
    column contains file names, `text`, whose column contains texts, or the columns of its numbers. A single image is allowed,
    too.
    """
    targets: tuple[ArgumentName, ...] | None = None
    """Columns with a class each (kind table), all answered by networks; null: only the column `label`."""
    resolution: int = Field(default_factory=_by_kind(lambda kind: _of(kind).resolution), ge=LEAST_SIDE, le=MOST_SIDE)
    """Height and width in pixels, with a default by kind; every smaller resolution is scaled down from this one. For texts: the
    number of words; longer ones are cut, and SubNets of smaller lengths take the first words.
    """
    upscale: int = Field(
        default_factory=_by_kind(lambda kind: 2 if kind == "small_glyphs" else 1), ge=1, le=MOST_UPSCALE
    )
    """Factor by which targets are higher and wider than images (kinds small_glyphs and pairs)."""
    channels: Literal[1, 3] = Field(default_factory=_by_kind(lambda kind: 1 if kind in (*SOUNDED, *WRITTEN) else 3))
    validation_share: float = Field(default=1 / 6, gt=0, lt=0.5)
    """Share of the training images held out for validation if there is no validation split."""
    test_share: float = Field(default=1 / 6, gt=0, lt=0.5)
    seed: int = Field(default=0, ge=0)
    """Seed of the split and, for drawn images, of the images."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    deviation: tuple[float, ...] = IMAGENET_DEVIATION
    augment: bool = True
    workers: Annotated[int, OutsideKey("how fast images come, not which")] = Field(default=2, ge=1, le=64)
    """Threads that decode or draw images."""

    @field_validator("kind", mode="before")
    @classmethod
    def _take_an_earlier_name(cls, kind: Any) -> Any:
        return name_now("kind", "data.kind", kind) if isinstance(kind, str) else kind

    @model_validator(mode="after")
    def _check(self) -> "DataSettings":
        if _of(self.kind).has_files and self.path is None:
            raise ValueError(f"data.kind={self.kind} needs data.path=FOLDER")
        if self.kind == "torchvision" and self.name not in PUBLISHED:
            raise ValueError(f"data.kind=torchvision needs data.name={', '.join(PUBLISHED)}, not {self.name}")
        if self.kind == "own" and not (self.name and is_function_name(self.name)):
            raise ValueError(f"data.kind=own needs data.name=FILE.py:function or module:function, not {self.name}")
        for option, kinds in OPTIONS_OF_KINDS.items():
            if self.kind not in kinds and getattr(self, option):
                raise ValueError(
                    f"data.{option}={getattr(self, option)} is for data.kind={' and '.join(kinds)}, not {self.kind}"
                )
        if self.labelled is not None and self.problem != "fidelity":
            raise ValueError(f"data.labelled={self.labelled} is for problem=fidelity, not {self.problem}")
        if self.kind in BOXED and self.head is None:
            raise ValueError(f"data.kind={self.kind} needs data.head=ssdlite, retinanet or fcos")
        if self.kind not in BOXED and self.head is not None:
            raise ValueError(f"data.head={self.head} is for data.kind={', '.join(BOXED)}, not {self.kind}")
        if (self.kind in CLIPS_S) != (self.clip_s is not None):
            raise ValueError(
                f"data.clip_s={self.clip_s} with data.kind={self.kind}; it is for {', '.join(CLIPS_S)}, which need it"
            )
        for name, kinds in (("vocabulary", WORDED), ("fields", IN_LINES)):
            if (self.kind in kinds) != (getattr(self, name) is not None):
                raise ValueError(f"data.{name} is for data.kind={', '.join(kinds)}, which need it, not {self.kind}")
        self._check_inputs()
        self._check_targets()
        if self.upscale > 1 and self.kind not in UPSCALED:
            raise ValueError(f"data.upscale={self.upscale} is for data.kind={', '.join(UPSCALED)}, not {self.kind}")
        if self.upscale == 1 and self.kind == "small_glyphs":
            raise ValueError(f"data.upscale=1 with data.kind=small_glyphs; allowed: 2 to {MOST_UPSCALE}")
        for limited, channels, why in (
            (("motion",), 3, "an accelerometer's axes"),
            (SOUNDED, 1, "spectrograms are grey"),
            (WRITTEN, 1, "texts have none"),
        ):
            if self.kind in limited and self.channels != channels:
                got = f"data.channels={self.channels} with data.kind={self.kind}"
                raise ValueError(f"{got}; allowed: {channels}, {why}")
        if any(value <= 0 for value in self.deviation):
            raise ValueError("data.deviation must be positive")
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if len(values) not in (1, 3):
                raise ValueError(f"data.{name} has {len(values)} values; allowed: 1 or 3")
        return self

    def _check_inputs(self) -> None:
        """ValueError for inputs that do not fit the kind."""
        for name in ("inputs", "words"):
            if (self.kind == "table") != (getattr(self, name) is not None):
                raise ValueError(f"data.{name} is for data.kind=table, which needs it, not {self.kind}")
        if self.inputs is None or self.has_one_image:
            return
        if len(self.inputs) < 2 or not {"image", "sound"} & set(self.inputs.values()):
            described = ", ".join(f"{name}: {value}" for name, value in self.inputs.items()) or "none"
            allowed = "one image, or two or more inputs, of which one is an image or a sound"
            raise ValueError(f"data.inputs={{{described}}}; allowed: {allowed}")

    def _check_targets(self) -> None:
        """ValueError for targets, or a metric, that do not fit the kind."""
        if self.targets is not None:
            if self.kind != "table":
                raise ValueError(f"data.targets is for data.kind=table, not {self.kind}")
            if len(self.targets) < 2 or len(set(self.targets)) < len(self.targets):
                described = ", ".join(self.targets) or "none"
                raise ValueError(
                    f"data.targets=[{described}]; allowed: two or more, each once; null: the column label alone"
                )
        if self.metric not in (allowed := METRICS[self._problem]):
            several = " and several data.targets" if self.targets else ""
            got = f"data.metric={self.metric} with data.kind={self.kind}{several}"
            raise ValueError(f"{got}; allowed: {', '.join(allowed)}")

    @property
    def functions(self) -> dict[str, str]:
        """The names of the user's functions by their options: samples, loss and score."""
        samples = {"data.name": self.name} if self.kind == "own" and self.name else {}
        return samples | (self.own_problem.functions if self.own_problem else {})

    @property
    def has_one_image(self) -> bool:
        """Whether a row of a table is one image, like samples of other kinds."""
        return list((self.inputs or {}).values()) == ["image"]

    @property
    def title(self) -> str:
        """The name of runs with this data."""
        if self.kind == "own":
            return (self.name or "").split(":")[-1].rpartition("-")[0 if is_live(self.name) else 2]
        return self.name or self.kind

    @property
    def sample(self) -> str:
        """The name of a sample in messages."""
        if (self.kind in SEVERAL and not self.has_one_image) or self.kind in ("own", "unlabelled"):
            return "sample"
        return "text" if self.kind in WRITTEN else "image"

    @property
    def problem(self) -> str:
        """The learning problem for targets of this kind (`tasks.data.problems`)."""
        if self.own_problem is not None:
            return self._problem
        if self.upscale > 1:
            return SUPER_RESOLUTION[self.upscale].name
        return f"{self._problem}_{self.head}" if self.kind in BOXED else self._problem

    @property
    def _problem(self) -> str:
        """The kind of the learning problem; with boxes, the detector's head completes it."""
        if self.own_problem is not None:
            return self.own_problem.kind
        return _of(self.kind).problem if self.targets is None else "several_classes"

    def per_channel(self, values: tuple[float, ...], channels: int | None = None) -> tuple[float, ...]:
        """`values` for each channel of the network's input, or for `channels`: repeated for RGB, averaged for grey."""
        wanted = self.channels if channels is None else channels
        return values if len(values) == wanted else (sum(values) / len(values),) * wanted
