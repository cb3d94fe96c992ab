"""Decisions as lines of JSON in a file, and the same decisions made again from it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import ValidationError

from adaptive_runtime.choice.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs
from adaptive_runtime.choice.table import VariantTable
from adaptive_runtime.errors import AdaptiveError
from profiling_agents.messages import Digest, Message, one_line

M = TypeVar("M", bound=Message)


class DecisionLogHead(Message):
    """First line of a log. table: digest of the table that decided. state: before the first decision."""

    version: Literal[1] = 1
    table: Digest
    state: ChoiceState


class LoggedDecision(Message):
    """Another line of a log."""

    inputs: DecisionInputs
    decision: Decision


class DecisionLog:
    """A log that is written line by line; a line is in the file when `append` returns."""

    def __init__(self, file: Path, table: VariantTable, state: ChoiceState) -> None:
        self._stream = file.open("w", encoding="utf-8", buffering=1)
        self._stream.write(DecisionLogHead(table=digest(table), state=state).model_dump_json() + "\n")

    def append(self, inputs: DecisionInputs, decision: Decision) -> None:
        """One more decision."""
        self._stream.write(f'{{"inputs":{inputs.model_dump_json()},"decision":{decision.model_dump_json()}}}\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def read_log(file: Path) -> tuple[DecisionLogHead, list[LoggedDecision]]:
    """Head and decisions of a log. A last line that was cut off is left out. AdaptiveError: damage in another line."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AdaptiveError(str(file), f"cannot be read ({error})") from error
    whole = lines[:-1]  # a line is whole when its end is there
    if not whole:
        raise AdaptiveError(str(file), "is no log of decisions")
    return _line(DecisionLogHead, file, 1, whole[0]), list(_decisions(file, whole[1:]))


def replay(file: Path, table: VariantTable, policy: ChoicePolicy) -> int:
    """Decide again from the inputs of a log; how many decisions were the same. AdaptiveError: the first that differs."""
    head, logged = read_log(file)
    if head.table != digest(table):
        raise AdaptiveError(str(file), "was decided with another table", next_step="replay it with that one")
    state = head.state
    for number, line in enumerate(logged, 2):
        state, decision = policy.decide(state, line.inputs)
        if decision != line.decision:
            got = f"line {number} decided '{line.decision.reason}', the replay '{decision.reason}'"
            raise AdaptiveError(str(file), got, next_step="replay it with the policy that decided")
    return len(logged)


def digest(table: VariantTable) -> str:
    """SHA-256 of a table."""
    return hashlib.sha256(table.to_json().encode()).hexdigest()


def _decisions(file: Path, lines: list[str]) -> Iterator[LoggedDecision]:
    for number, line in enumerate(lines, 2):
        yield _line(LoggedDecision, file, number, line)


def _line(kind: type[M], file: Path, number: int, text: str) -> M:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise AdaptiveError(f"{file}, line {number}", one_line(error)) from error
