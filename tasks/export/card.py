"""Model cards: the facts on one exported SubNet, for programs (JSON) and for people (Markdown), from the same data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_runtime.bundle.bundles import BundleDevice, BundleOrigin
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ImagePreparation, InputPreparation, InputsPreparation
from adaptive_runtime.samples.inputs import (
    PADDING,
    VOCABULARY_FILE,
    GivenPreparation,
    NumbersPreparation,
    Spectrogram,
    TextPreparation,
    Vocabulary,
)
from profiling_agents.messages import Capabilities
from tasks.base.artifacts import json_bytes, write_bytes
from tasks.base.schemas import exports
from tasks.data.problems import FIDELITY, problem_named
from tasks.data.source import OtherInput
from tasks.evaluation.uncertainty import uncertain
from tasks.measuring.runtime_options.settings import ChosenEngine

if TYPE_CHECKING:
    from tailor_ir import SuperNet
    from tasks.data.dataset import DataDescription

UNKNOWN = "unknown"
MOST_CLASSES = 1000
"""Limit of class names in the card for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The origin of a SubNet. network: name, source and licence of the initial weights.

    digests: of the SuperNet, the look-up table and the predictors, by name. engine: of the device; None without one.
    """

    network: Mapping[str, str] = field(
        default_factory=lambda: {"name": UNKNOWN, "weights": UNKNOWN, "licence": UNKNOWN}
    )
    data: str = UNKNOWN
    digests: Mapping[str, str] = field(default_factory=dict)
    engine: ChosenEngine | None = None

    @property
    def origin(self) -> BundleOrigin:
        """The origin as it is stored."""
        return BundleOrigin(network=dict(self.network), data=self.data, digests=dict(self.digests))


UNKNOWN_PROVENANCE = Provenance()


def architecture(net: SuperNet, config: Mapping[str, Any]) -> exports.Architecture:
    """The description of a SubNet: its operators, and its choices among those of the SuperNet."""
    known = dict(config)
    return exports.Architecture(
        operators=dict(Counter(feature.operator for feature in net.operators(known)).most_common()),
        variables=tuple(
            exports.VariableChoice(name=variable.name, choice=known[variable.name], choices=tuple(variable.choices))
            for variable in net.space.variables
            if variable.name in known
        ),
    )


Prepared = ImagePreparation | TextPreparation | GivenPreparation | InputsPreparation


def preparation(data: DataDescription, input_shapes: Mapping[str, tuple[int, ...]]) -> Prepared:
    """The preprocessing of a sample for a network with these inputs: (N, C, H, W) for images, (N, T) for texts."""
    if data.inputs is not None:
        return InputsPreparation(
            inputs={name: _input_preparation(data, one, input_shapes[name]) for name, one in data.inputs.items()}
        )
    (input_shape,) = input_shapes.values()
    if data.given is not None:
        return data.given.model_copy(update={"size": tuple(input_shape[1:])})
    if data.vocabulary is None:
        return image_preparation(data, input_shape)
    from tasks.data.texts import text_preparation  # torch takes seconds

    (length,) = input_shape[1:]
    return text_preparation(data.vocabulary, data.resolution, length)


def _input_preparation(data: DataDescription, one: OtherInput | None, input_shape: tuple[int, ...]) -> InputPreparation:
    """The preparation of one of several inputs: a sound is its spectrogram, as an image on the scale of grey images."""
    if isinstance(one, Spectrogram):
        scale = {
            name: (sum(values) / len(values),) for name, values in (("mean", data.mean), ("deviation", data.deviation))
        }
        own = {"spectrogram": one, "channels": one.channels, "crop": "none", "interpolation": "none", **scale}
        data = data.model_copy(update=own)
    elif isinstance(one, GivenPreparation):
        return one.model_copy(update={"size": tuple(input_shape[1:])})
    elif one is not None:
        return one
    return image_preparation(data, input_shape)


def image_preparation(data: DataDescription, input_shape: tuple[int, ...]) -> ImagePreparation:
    """The preprocessing of an image for a network of this input shape (N, C, H, W)."""
    from tasks.data.images import INTERPOLATION  # torch takes seconds

    height, width = input_shape[-2:]
    signal = {} if data.spectrogram is None else {"spectrogram": data.spectrogram}
    return ImagePreparation(
        **signal,
        colours="grey" if data.channels == 1 else "RGB",
        crop=data.crop or UNKNOWN,
        resolution=data.resolution,
        interpolation=data.interpolation or UNKNOWN,
        mean=data.mean,
        deviation=data.deviation,
        size=(height, width),
        size_interpolation=INTERPOLATION,
    )


def write_vocabulary(vocabulary: Vocabulary | None, folder: Path) -> None:
    """Write the vocabulary of texts beside the files; nothing for images."""
    if vocabulary is not None:
        write_bytes(folder / VOCABULARY_FILE, vocabulary.to_json().encode())


def card_device(capabilities: Capabilities) -> BundleDevice:
    """The device on which latencies were measured."""
    return BundleDevice(**{name: getattr(capabilities, name) for name in BundleDevice.model_fields})


def used_engine(engine: ChosenEngine | None) -> exports.UsedEngine | None:
    """The engine in the form of a card."""
    if engine is None:
        return None
    kept = {one.option: one.gain.ratio for one in engine.kept}
    return exports.UsedEngine(choices=engine.chosen, speed_up=engine.speed_up, kept=kept)


def card_files(card: exports.Card) -> dict[str, bytes]:
    """The model card by suffix: JSON for programs, Markdown for people."""
    return {".json": json_bytes(card.to_json()), ".md": markdown(card).encode()}


def markdown(card: exports.Card) -> str:
    """The card for people."""
    source = card.made_from
    parts = [
        *_title(card),
        _table(("", ""), _facts(card)),
        *_prepared(card.preparation),
        *(
            ["## Classes", _table(("output", "class"), list(enumerate(card.classes[:MOST_CLASSES])))]
            if card.classes
            else []
        ),
        f"{hidden} more are in the card's JSON file." if (hidden := len(card.classes) - MOST_CLASSES) > 0 else "",
        *_answers(card),
        "## Files",
        _table(
            ("format", "files", "bytes", "checked in", "difference from torch, of int8 from onnxruntime", "allowed"),
            [_file_row(name, file) for name, file in card.files.items()],
        ),
        _other_types(card.files),
        *_quantised(card.files.values()),
        *_exits(card.files),
        *_memory(card.files.get("onnx")),
        "## How they run",
        _table(
            ("format", "runtime, build", "settings", "masks", "what they brought", "examples"),
            [_run_row(name, file.run, file.examples) for name, file in card.files.items() if file.run],
        ),
        _states(card.states),
        "## Architecture",
        _table(
            ("variable", "choice", "choices"),
            [(one.name, one.choice, ", ".join(map(str, one.choices))) for one in card.architecture.variables],
        ),
        "Operators: " + ", ".join(f"{count} {name}" for name, count in card.architecture.operators.items()) + ".",
        "## Made from",
        _table(("", "digest"), list(source.digests.items())),
        "" if card.digest == exports.AS_GIVEN else _own_tensors(card.adapted),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _states(states: Mapping[str, str]) -> str:
    """A sentence on the states of a network."""
    if not states:
        return ""
    pairs = ", ".join(f"`{name}` is `{output}` of the step before" for name, output in states.items())
    return (
        f"The network has states, zeros at first: {pairs}. `adaptive_runtime.StatefulNetwork` keeps them from call to call of "
        "an .onnx file."
    )


def _other_types(files: Mapping[str, exports.ExportedFile]) -> str:
    """Files whose inputs have another type than those of the card, which other formats take."""
    told = [
        f"{name} takes {', '.join(f'`{one.name}` in {one.type}' for one in file.run.inputs)}"
        for name, file in files.items()
        if file.run is not None and any(one.type not in ("float32", "int64") for one in file.run.inputs)
    ]
    return f"As in the given file, {'; '.join(told)}: cast to it for these files, and not for others." if told else ""


def _title(card: exports.Card) -> tuple[str, str]:
    name, data = card.made_from.network["name"], card.made_from.data
    if card.digest == exports.AS_GIVEN:
        return (
            f"# {name} as given",
            f"The network `{name}` with its weights as they were given, for `{data}`. No run has trained it.",
        )
    return f"# SubNet {card.digest}", f"A SubNet of `{name}` for `{data}`."


def _facts(card: exports.Card) -> list[tuple[str, str]]:
    """Rows with the costs and the accuracy of a SubNet, and the device and the weights behind them."""
    latency, device, network = card.latency, card.device.model_dump(mode="json"), card.made_from.network
    measured = f"{latency.p50_ms:.4g} ms (p50)" if latency.p50_ms else f"not measured: {latency.reason}"
    accuracy = _accuracy_of(card)
    return [
        *_input_rows(card),
        ("MACs, parameters", f"{card.macs / 1e6:.4g} M, {card.parameters / 1e6:.4g} M"),
        *(
            (
                f"{'true score' if split == exports.LABELLED else accuracy}, {split}",
                uncertain(share, card.samples.get(split), _spread(card, split)),
            )
            for split, share in card.accuracy.items()
        ),
        (f"latency, batch {card.batch}", measured),
        ("predicted latency", f"{card.predicted_ms:.4g} ms"),
        ("device", ", ".join(f"{name} {value}" for name, value in device.items() if value is not None)),
        ("engine", _engine(card.engine)),
        ("weights", network["weights"]),
        ("licence of these weights", network["licence"]),
    ]


def _spread(card: exports.Card, split: str) -> float:
    """The spread of scores on a split: labelled samples have right and wrong answers, and a network answers as itself."""
    if split == exports.LABELLED:
        return 1.0
    return 0.0 if card.digest == exports.AS_GIVEN and card.problem == FIDELITY.name else card.spread


def _own_tensors(described: exports.AdaptedTensors | None) -> str:
    """A sentence on tensors that are not shared weights: BatchNorm statistics and, if any, adapted tensors."""
    statistics = "BatchNorm statistics are the SubNet's own."
    if described is None:
        return statistics
    aligned = ""
    if described.input_deviations is not None:
        aligned = (
            " Files bring mean, contrast and details of each image back to what is usual "
            f"(`input_deviations` {described.input_deviations:g}), so applications need not; latencies include it."
        )
    return (
        f"{statistics} The SubNet has adapted: {described.tensors} of its tensors are those of the side file with sha256 "
        f"`{described.sha256}`, after {described.steps} batches.{aligned} Accuracies are those of the adapted SubNet, "
        "predictions those of the SubNet before."
    )


def _answers(card: exports.Card) -> list[str]:
    """A section on decoding raw outputs into boxes, if the SubNet is a detector."""
    if (decoding := card.decoding) is None:
        return []
    height, width = card.input_shape[-2:]
    call = f'detect(head_of("{decoding.head}"), raw_output, ({height}, {width}))'
    time = f"{decoding.p50_ms:.3g} ms an image (median of {decoding.images}) on the machine that exported"
    return [
        "## Boxes",
        f"The output has a row for each anchor; class 0 is the background. `{call}` of `adaptive_runtime.samples.boxes` gives "
        f"the boxes of each image, in pixels of the input, in numpy. Latencies do not include it: it takes {time}.",
    ]


def _accuracy_of(card: exports.Card) -> str:
    """The name of the accuracy: on an int8 device it is that of the int8 file."""
    own = card.files.get("onnx_int8")
    is_of_int8 = card.device.precision == "int8" and own is not None and own.int8 is not None
    name = problem_named(card.problem, card.metric).score
    return f"{name} in int8" if is_of_int8 else name


def _engine(used: exports.UsedEngine | None) -> str:
    """The options of the runtime, and their gain."""
    if used is None or not used.choices:
        return "the runtime's defaults"
    kept = {name: f" ({ratio:.0%} of the time without)" for name, ratio in used.kept.items()}
    choices = ", ".join(f"{name}={choice}{kept.get(name, '')}" for name, choice in used.choices.items())
    return f"{choices}; {used.speed_up:.2f} times as fast as the runtime's defaults"


def _input_rows(card: exports.Card) -> list[tuple[str, str]]:
    """Shape and type of each input."""
    wanted, batch = card.preparation, card.input_shape[:1]
    if not isinstance(wanted, InputsPreparation):
        return [("input", f"{_sizes(card.input_shape)}, {_type_of(wanted)}")]
    own = wanted.own_shapes
    return [
        (f"input `{name}`", f"{_sizes((*batch, *own[name]))}, {_type_of(one)}") for name, one in wanted.inputs.items()
    ]


def _sizes(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _type_of(wanted: InputPreparation) -> str:
    """The type of an input's numbers."""
    if isinstance(wanted, GivenPreparation):
        return wanted.dtype
    return "int64" if isinstance(wanted, TextPreparation) else "float32"


def _prepared(wanted: Prepared) -> tuple[str, ...]:
    """The preparation of a sample by an application: a heading and its steps, for each input."""
    if isinstance(wanted, InputsPreparation):
        parts = [(f"## Input `{name}`", _input(one)) for name, one in wanted.inputs.items()]
        return tuple(part for pair in parts for part in pair)
    kind = (
        "Samples"
        if isinstance(wanted, GivenPreparation)
        else "Texts"
        if isinstance(wanted, TextPreparation)
        else "Images"
    )
    return f"## {kind}", _input(wanted)


def _input(wanted: InputPreparation) -> str:
    """The preparation of an input by an application."""
    if isinstance(wanted, TextPreparation):
        return _texts(wanted)
    if isinstance(wanted, GivenPreparation):
        return _given(wanted)
    return _numbers_of(wanted) if isinstance(wanted, NumbersPreparation) else _images(wanted)


def _texts(wanted: TextPreparation) -> str:
    """The numbers of a text's words."""
    (length,) = wanted.size
    return (
        f"An application gives numbers of words below {wanted.words}, {length} of each text: more words are cut, and fewer are "
        f'filled up with {PADDING}. `Vocabulary.from_file(Path("{wanted.vocabulary}")).tokens(texts, {length})` of '
        f"`adaptive_runtime.samples.inputs` makes them; `{wanted.vocabulary}` is beside the files. A deployed bundle takes "
        f"{wanted.length} words of each text, whichever SubNet answers."
    )


def _numbers_of(wanted: NumbersPreparation) -> str:
    """The scale of each number."""
    sizes = _sizes(wanted.shape)
    rows = list(
        zip(wanted.names, (f"{one:g}" for one in wanted.mean), (f"{one:g}" for one in wanted.deviation), strict=True)
    )
    described = (
        f"An application gives {sizes} numbers, the first axis in this order, each less its mean, over its deviation:"
    )
    return f"{described}\n\n{_table(('', 'mean', 'deviation'), rows)}"


def _given(wanted: GivenPreparation) -> str:
    """The samples as their owner gives them."""
    scaled = "" if wanted.shape == wanted.size else f" The SubNet takes {_sizes(wanted.size)} of them"
    scaled += f", scaled by: {wanted.size_interpolation}." if scaled and len(wanted.shape) > 1 else "." * bool(scaled)
    given = f"An application gives {wanted.dtype} {_sizes(wanted.shape)} for each sample.{scaled}"
    if wanted.pictures is None:
        own = wanted.described or "the training data's own; no description of it was given"
        return f"{given} Preparation: {own}."
    steps = _numbered(wanted.pictures.lines)
    return (
        f"{given} `preparation.pictures.of(picture)` of the bundle's manifest, or `PictureSteps` of "
        f"`adaptive_runtime.samples.pictures`, makes them from pictures (height, width, RGB in uint8):\n\n{steps}"
    )


def _images(wanted: ImagePreparation) -> str:
    """The preprocessing of an image in an application, step by step."""
    size = _sizes(wanted.size)
    pixels = [
        f"{wanted.colours}, values in [0, 1]",
        f"cut out: {wanted.crop}",
        f"{wanted.resolution} × {wanted.resolution} pixels, scaled by: {wanted.interpolation}",
    ]
    steps = [
        *(pixels if wanted.spectrogram is None else [wanted.spectrogram.line]),
        f"subtract {_numbers(wanted.mean)}, divide by {_numbers(wanted.deviation)}, by channel",
        *(
            [f"{size} pixels, scaled by: {wanted.size_interpolation}"]
            if set(wanted.size) != {wanted.resolution}
            else []
        ),
    ]
    what = "images" if wanted.spectrogram is None else "signals"
    return f"An application prepares {what}; the files do not:\n\n{_numbered(steps)}"


def _numbered(steps: Iterable[str]) -> str:
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _numbers(values: tuple[float, ...]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"


def _quantised(files: Iterable[exports.ExportedFile]) -> list[str]:
    """A section on the costs and gains of int8 for each quantised file."""
    parts = []
    for file in files:
        if (found := file.int8) is None:
            continue
        rows: list[tuple[str, ...]] = [
            (f"accuracy, {split}", f"{share:.2%}", f"{share + found.lost_points[split] / 100:.2%}")
            for split, share in found.accuracy.items()
        ]
        rows.append(("bytes", str(file.bytes), str(found.fp32_bytes)))
        if found.latency is not None:
            rows.append(("latency, p50", _milliseconds(found.latency.p50_ms), _milliseconds(found.fp32_ms)))
        kept = ", ".join(f"`{name}`" for name in found.kept_fp32)
        text = f"{found.layers - len(found.kept_fp32)} of {found.layers} layers are in int8"
        text += f", by the ranges of {found.calibration_images} training images."
        parts += ["## int8", _table(("", "int8", "fp32"), rows), text + (f" In fp32: {kept}." if kept else "")]
    return parts


def _exits(files: Mapping[str, exports.ExportedFile]) -> list[str]:
    """A section on the cost up to each exit, if the SubNet is exported as a chain."""
    timed = {name: file.segments for name, file in files.items() if file.segments}
    if not timed:
        return []
    rows = []
    for at, segment in enumerate(next(iter(timed.values()))):
        times_ms = [segments[at].latency_ms for segments in timed.values()]
        rows.append((segment.exit, f"{segment.macs / 1e6:.4g} M", *map(_milliseconds, times_ms)))
    head = ("up to exit", "MACs more than before", *(f"{name}, p50 more than before" for name in timed))
    text = f"A chain's `{SEGMENTS_FILE}` says how a program runs it: {', '.join(timed)}."
    expected = [
        f"{name}: samples that leave by `thresholds.json` as test images do take {_milliseconds(file.expected_ms)} on average."
        for name, file in files.items()
        if file.expected_ms is not None
    ]
    return ["## Exits", _table(head, rows), text, *expected]


def _milliseconds(time_ms: float | None) -> str:
    return "not measured" if time_ms is None else f"{time_ms:.4g} ms"


def _file_row(name: str, file: exports.ExportedFile) -> tuple[str, ...]:
    if file.state != "ok":
        return name, f"none: {file.reason}", "", "", "", ""
    runtime = f"{file.runtime} {file.precision}, " + ("the device" if file.on_device else "this machine")
    difference = f"{file.relative_difference:.2g}"
    return name, ", ".join(file.sha256), str(file.bytes), runtime, difference, f"{file.tolerance:g}"


def _memory(file: exports.ExportedFile | None) -> list[str]:
    """A comparison of the planned order of an ONNX file with the default order."""
    if file is None or (found := file.memory) is None:
        return []
    if found.planned_counted_mib is None:
        return ["## Memory by order", f"The ONNX file has the default order: {found.reason}."]
    rows = [
        ("planned", found.planned_mib, found.planned_counted_mib, found.planned_ms),
        ("default", found.default_mib, found.default_counted_mib, found.default_ms),
    ]
    table = _table(
        ("order of the nodes", "peak of activations, predicted [MiB]", "counted [MiB]", "a run [ms]"),
        [(name, *(f"{value:.4g}" for value in values if value is not None)) for name, *values in rows],
    )
    options = ", ".join(f"`{name}={value}`" for name, value in found.session_options.items())
    described = (
        f"The file is run with these session options: {options}." if found.kept else f"Default order: {found.reason}."
    )
    return ["## Memory by order", table, f"{described} Counted and timed on this machine, one thread, in a first run."]


def _run_row(name: str, run: exports.FileRun, examples: Mapping[str, str]) -> tuple[str, ...]:
    runtime = f"{run.runtime} {run.version} ({run.build}), {run.provider}, {run.precision}, threads: {run.threads}"
    settings = ", ".join(f"{setting}={value}" for setting, value in run.settings.items())
    masks = ", ".join(f"{layer}: {mask}" for layer, mask in run.masks.items())
    return name, runtime, settings, masks, "; ".join(map(_gain, run.brought)), ", ".join(examples)


def _gain(brought: exports.Brought) -> str:
    took = "" if brought.ratio is None else f"{brought.ratio:.0%} of the time without, "
    return f"{brought.choice}: {took}{brought.measured}"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    cells = ([" ".join(str(value).replace("|", "/").split()) for value in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
