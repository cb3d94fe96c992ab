"""Variables of a space, and facts about each for display."""

from dataclasses import dataclass

NumberChoice = int | float
Choice = NumberChoice | str
Config = dict[str, Choice]


def choice_text(choice: Choice) -> str:
    """A choice as text for people: 1 also for 1.0."""
    return choice if isinstance(choice, str) else f"{choice:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One choosable property. `choices` ascend (names: in cost); the last is that of the original network."""

    name: str
    kind: str  # name of its record in `spaces.kinds`
    scope: str  # "global" | "stage" | "block"
    choices: tuple[Choice, ...]

    @property
    def default(self) -> Choice:
        """The choice of the largest SubNet."""
        return self.choices[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableInfo:
    """The effects of one variable, from its largest to its smallest choice, with all others at their largest.

    nodes: names of the nodes that it resizes or removes, in order. axes: the axes that it resizes or removes: channel groups
    ("C3"), "H" and "W" of the input, other axes by initial and number. parameters_saved: trainable parameters. macs_saved: of
    one sample.
    """

    name: str
    kind: str
    scope: str
    choices: tuple[Choice, ...]
    nodes: tuple[str, ...]
    axes: tuple[str, ...]
    parameters_saved: int
    macs_saved: int

    @property
    def first_node(self) -> str:
        """Name of the first node that it affects."""
        return self.nodes[0]

    @property
    def last_node(self) -> str:
        """Name of the last node that it affects."""
        return self.nodes[-1]
