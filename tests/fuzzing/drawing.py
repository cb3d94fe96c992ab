"""From a seed to a network. The same seed gives the same network on every machine."""

import numpy as np

from tests.fuzzing.drafts import Draft, Unfit, Value
from tests.fuzzing.networks import Network
from tests.fuzzing.recipes import RECIPES, Recipe

OPSETS = (13, 14, 15, 16, 17, 17, 17, 18, 19, 20, 21, 23, 24)
MOST_RECIPES = 8
TRIES = 8
CLASSES = (5, 10, 16, 1)
INPUTS = (
    ("float32", (3, 8, 8), 5), ("float32", (3, 12, 8), 1), ("float32", (1, 9, 9), 1), ("float32", (8, 16, 16), 1),
    ("float32", (3, 7, 10), 1), ("float32", (12, 16), 1), ("float32", (6, 24), 2), ("float32", (20,), 1), ("int64", (6,), 2),
    ("int32", (8,), 1), ("float32", (8, 8, 3), 1), ("float32", (1,), 0.3), ("float32", (2, 4, 6, 6), 0.5),
    ("uint8", (3, 8, 8), 0.3), ("float32", (), 0.3), ("bool", (6,), 0.2),
)  # fmt: skip
"""Element type, shape of one sample, and how likely it is."""


def draw(seed: int) -> Network:
    """The network of a seed. It has, among others, recipe number `seed` modulo their number."""
    rng = np.random.default_rng([11, seed])
    for _ in range(100):
        try:
            return _drawn(rng, RECIPES[seed % len(RECIPES)])
        except Unfit:
            continue
    raise AssertionError(f"seed {seed}: recipe '{RECIPES[seed % len(RECIPES)].name}' fits nowhere")


def _drawn(rng: np.random.Generator, wanted: Recipe) -> Network:
    opset = int(rng.choice([version for version in OPSETS if version >= wanted.since]))
    draft = Draft(rng, opset)
    _add_input(draft)
    if draft.chance(0.25):
        _add_input(draft)
    count = int(rng.integers(1, MOST_RECIPES + 1))
    place, results = int(rng.integers(count)), []
    for number in range(count):
        found = _tried(draft, [wanted] * TRIES if number == place else [_recipe(draft)])
        if found is not None:
            results.append(found)
        elif number == place:
            raise Unfit
    outputs = _ends(draft, results)
    return draft.network(outputs, _written(draft), int(draft.choose((1, 2, 4))) if draft.chance(0.12) else 0)


def _add_input(draft: Draft) -> None:
    shares = np.asarray([share for *_, share in INPUTS])
    kind, shape, _ = INPUTS[int(draft.rng.choice(len(INPUTS), p=shares / shares.sum()))]
    value = draft.input(kind, *shape)
    if kind == "uint8":
        scaled = draft.one("Cast", value.name, to=1)
        draft.one("Mul", f"{scaled.name} {draft.constant(1 / 255)}")
    if kind == "bool":
        draft.one("Cast", value.name, to=1)
    if kind.startswith("int"):
        draft.one("Gather", f"{draft.weight(16, draft.width())} {value.name}", axis=0)


def _recipe(draft: Draft) -> Recipe:
    allowed = [recipe for recipe in RECIPES if recipe.since <= draft.opset]
    shares = np.asarray([recipe.share for recipe in allowed])
    return allowed[int(draft.rng.choice(len(allowed), p=shares / shares.sum()))]


def _tried(draft: Draft, recipes: list[Recipe]) -> Value | None:
    """What the first recipe that fits gives."""
    for recipe in recipes:
        try:
            return recipe.make(draft)
        except Unfit:
            continue
    return None


def _ends(draft: Draft, results: list[Value]) -> list[str]:
    """The outputs: all results that nothing reads, as they are, after a last layer, or added up."""
    read = {name for step in draft.steps for name in step.read}
    ends = list(dict.fromkeys(value for value in results if value.name not in read))
    shown = [value for value in ends if not (value.kind == "float32" and value.plain)]
    ends = [value for value in ends if value not in shown]
    if len(ends) > 2 or (len(ends) == 2 and draft.chance(0.5)):
        width = draft.width()
        parts = [_vector_of(draft, value, width) for value in ends]
        ends = [draft.one("Sum", " ".join(part.name for part in parts))]
    if draft.chance(0.2):  # a value from the middle as well
        shown += [draft.pick(lambda v: v.kind == "float32" and v.plain and v.name not in draft.inputs)]
    for value in ends:
        shown.append(value if draft.chance(0.35) else _vector_of(draft, value, int(draft.choose(CLASSES))))
    return list(dict.fromkeys(value.name for value in shown))


def _vector_of(draft: Draft, value: Value, width: int) -> Value:
    """A linear map of what a value has for each sample, or of its mean over positions."""
    if value.rank == 1:
        value = draft.by_axes("Unsqueeze", value.name, [1])
    if value.rank > 2:
        large = np.prod(value.shape[1:]) > 1024 or draft.chance(0.6)
        axes = [1] if value.rank == 3 and draft.chance(0.5) else list(range(2, value.rank))
        value = (
            draft.by_axes("ReduceMean", value.name, axes, 18, keepdims=0)
            if large
            else draft.one("Flatten", value.name, axis=1)
        )
    return draft.linear(value, width)


def _written(draft: Draft) -> list[str]:
    """Names of the tensors that are Constant nodes: none, those that are no weights, or all."""
    way = draft.rng.random()
    if way < 0.55:
        return []
    return [*draft.constants, *(draft.weights if way > 0.9 else ())]
