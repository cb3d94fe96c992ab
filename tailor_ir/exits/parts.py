"""All exits of a SubNet in one forward pass: the exits cut it into parts, each with its head.

Legend: B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import torch
from torch.nn import functional

from tailor_ir.graph import GivenInputs
from tailor_ir.spaces.selectors import Choice
from tailor_ir.spaces.stage_kinds import EXIT
from tailor_ir.subnets.batch_norms import Statistics
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.subnets.plans import Instruction, execute, last_reads

Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitPart:
    """The instructions that one exit needs and the exits before it do not.

    body: instructions that later exits need, too. head: instructions that no later exit needs; () for the whole network.
    answer: the exit's value (B, K). parameters, statistics: names of the tensors that no earlier part reads; head_parameters:
    those of the head.
    """

    exit: str
    body: tuple[Instruction, ...]
    head: tuple[Instruction, ...]
    answer: str
    parameters: tuple[str, ...]
    head_parameters: tuple[str, ...]
    statistics: tuple[str, ...]


class _Schedule(NamedTuple):
    """Instructions with the values that are released after each. constant: number of first instructions without gradients."""

    steps: tuple[tuple[Instruction, tuple[str, ...]], ...]
    constant: int


class ExitParts:
    """The parts of a SubNet, in order; the last one's exit is the whole network.

    A pass computes the bodies of the first `constant` parts without gradients and with their stored BatchNorm statistics, so
    that it keeps none of their activations; the other parts follow the network's mode.
    """

    def __init__(self, elastic: Elastic, config: Mapping[str, Choice]) -> None:
        self._elastic = elastic
        graph, space = elastic.structure.graph, elastic.structure.space
        variable = next(one for one in space.variables if one.kind == EXIT.name)
        programs = [elastic.program({**config, variable.name: choice}) for choice in variable.choices]
        trained, counted = set(graph.parameters), set(graph.statistics)
        later: list[set[str]] = [set()]
        for program in reversed(programs[1:]):
            later.append(later[-1] | {one.outputs[0] for one in program.instructions})
        seen: set[str] = set()
        read: set[str] = set()
        parts: list[ExitPart] = []
        for choice, program, needed in zip(variable.choices, programs, reversed(later), strict=True):
            new = [one for one in program.instructions if one.outputs[0] not in seen]
            is_last = not needed
            body = tuple(one for one in new if is_last or one.outputs[0] in needed)
            head = () if is_last else tuple(one for one in new if one.outputs[0] not in needed)
            names = [name for name in _stored(new) if name not in read]
            seen.update(one.outputs[0] for one in new)
            read.update(names)
            own = set(_stored(head))
            parameters = tuple(name for name in names if name in trained)
            parts.append(
                ExitPart(
                    exit=str(choice),
                    body=body,
                    head=head,
                    answer=program.outputs[0],
                    parameters=parameters,
                    head_parameters=tuple(name for name in parameters if name in own),
                    statistics=tuple(name for name in names if name in counted),
                )
            )
        self.parts = tuple(parts)
        self._linear = {_last_layer(part).outputs[0] for part in parts if part.head}
        self._schedule = cache(self._make_schedule)

    def begin(self, x_BCHW: GivenInputs, exits: Sequence[int], constant: int = 0) -> Values:
        """The values that the bodies of the first `constant` parts pass on. exits: positions of the exits of this pass."""
        schedule = self._schedule(tuple(exits), constant)
        values = self._elastic.structure.graph.named_inputs(x_BCHW)
        with torch.no_grad(), self._elastic.evaluated():
            self._run(schedule.steps[: schedule.constant], values)
        return values

    def finish(
        self, values: Values, exits: Sequence[int], constant: int = 0, dropout: float = 0.0
    ) -> list[torch.Tensor]:
        """The answers (B, K) of the exits, from the result of `begin`; `values` is consumed.

        dropout: share of numbers dropped before the linear layers of heads.
        """
        schedule = self._schedule(tuple(exits), constant)
        self._run(schedule.steps[schedule.constant :], values, dropout)
        return [values[self.parts[position].answer] for position in exits]

    def answers(
        self, x_BCHW: GivenInputs, exits: Sequence[int], constant: int = 0, dropout: float = 0.0
    ) -> list[torch.Tensor]:
        """The answers (B, K) of some exits, by position, in one pass; dropout: as in `finish`."""
        values = self.begin(x_BCHW, exits, constant) if constant else self._elastic.structure.graph.named_inputs(x_BCHW)
        return self.finish(values, exits, constant, dropout)

    @torch.no_grad()
    def observe(self, batches: Iterable[GivenInputs], exits: Sequence[int], constant: int = 0) -> Statistics:
        """BatchNorm statistics of the parts that are not constant: means over the batches. Nothing is written."""
        runs = (partial(self.finish, self.begin(x, exits, constant), exits, constant) for x in batches)
        return self._elastic.observed(runs)

    def _run(self, steps: Sequence[tuple[Instruction, tuple[str, ...]]], values: Values, dropout: float = 0.0) -> None:
        for instruction, released in steps:
            if dropout and instruction.outputs[0] in self._linear:
                read = instruction.operands[0]
                values[read] = functional.dropout(values[read], dropout)
            execute((instruction,), self._elastic.tensor, values)
            for name in released:
                del values[name]

    def _make_schedule(self, exits: tuple[int, ...], constant: int) -> _Schedule:
        reached = self.parts[: max(exits) + 1]
        first = [one for part in reached[:constant] for one in part.body]
        rest = [
            one
            for position, part in enumerate(reached)
            for one in (*(() if position < constant else part.body), *(part.head if position in exits else ()))
        ]
        kept = {self.parts[position].answer for position in exits}
        released = last_reads([*first, *rest], kept)
        return _Schedule(tuple(zip([*first, *rest], released, strict=True)), len(first))


def _last_layer(part: ExitPart) -> Instruction:
    """The last layer of a head that has weights."""
    return [one for one in part.head if one.cuts][-1]


def _stored(instructions: Iterable[Instruction]) -> dict[str, None]:
    """The stored tensors that instructions read, in order."""
    return dict.fromkeys(name for one in instructions for name, _ in one.cuts)
