"""Decisions as lines of JSON in a file, and their replay."""

import hashlib
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import PlainSerializer, ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs
from adaptive_runtime.policy.table import VariantTable
from profiling_agents.messages import Digest, Message, one_line

DECISION = '{"inputs":'
BY_NAME = PlainSerializer(lambda fields: fields._asdict())


class DecisionLogHead(Message):
    """First line of a section of a log: a process began to decide. table: digest of its table. state: its initial state.

    policy: the rules by which it decided; None: no rules.
    """

    version: Literal[1] = 1
    table: Digest
    state: Annotated[ChoiceState, BY_NAME]
    policy: str | None = None


class LoggedDecision(Message):
    """Any further line of a log."""

    inputs: Annotated[DecisionInputs, BY_NAME]
    decision: Annotated[Decision, BY_NAME]


class LogSection(NamedTuple):
    """All decisions of one process. line: number of the head's line."""

    line: int
    head: DecisionLogHead
    decisions: list[LoggedDecision]


class DecisionLog:
    """Appends a section to a log; a line is in the file when `append` returns. policy: the text of rules."""

    def __init__(self, file: Path, table: VariantTable, state: ChoiceState, policy: str | None = None) -> None:
        _cut_to_whole_lines(file)
        self._stream = file.open("a", encoding="utf-8", buffering=1)
        try:
            head = DecisionLogHead(table=digest(table), state=state, policy=policy)
            self._stream.write(head.model_dump_json() + "\n")
        except OSError:
            self.close()
            raise

    def append(self, inputs: DecisionInputs, decision: Decision) -> None:
        """Append one decision."""
        self._stream.write(LoggedDecision(inputs=inputs, decision=decision).model_dump_json() + "\n")

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self._stream.fileno()).st_size

    def close(self) -> None:
        """Close the file, even if the disk is full."""
        with suppress(OSError):
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_log(file: Path) -> list[LogSection]:
    """The sections of a log. A truncated last line is left out. AdaptiveError for damage in another line."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]  # a line without its end is incomplete
    except (OSError, UnicodeDecodeError) as error:
        raise AdaptiveError(str(file), f"cannot be read ({error})") from error
    sections: list[LogSection] = []
    for number, text in enumerate(lines, 1):
        try:
            line = (LoggedDecision if text.startswith(DECISION) else DecisionLogHead).model_validate_json(text)
        except ValidationError as error:
            raise AdaptiveError(f"{file}, line {number}", one_line(error)) from error
        if isinstance(line, DecisionLogHead):
            sections.append(LogSection(number, line, []))
        elif sections:
            sections[-1].decisions.append(line)
        else:
            raise AdaptiveError(f"{file}, line {number}", "a decision without a head before it")
    if not sections:
        raise AdaptiveError(str(file), "is no log of decisions")
    return sections


def replay(file: Path, table: VariantTable, policy: ChoicePolicy) -> int:
    """Decide again from the inputs of a log; return how many decisions were equal. AdaptiveError for the first that differs.

    The head of a section has the rules by which it was decided, if any: `parse_rules` reads them.
    """
    count = 0
    for first, head, decisions in read_log(file):
        if head.table != digest(table):
            got = f"line {first} and after were decided with another table"
            raise AdaptiveError(str(file), got, next_step="replay it with that one")
        state = head.state
        for number, line in enumerate(decisions, first + 1):
            state, decision = policy.decide(state, line.inputs)
            if decision != line.decision:
                got = f"line {number} decided '{line.decision.reason}', the replay '{decision.reason}'"
                got += "" if head.policy is None else f"; its policy was '{head.policy}'"
                raise AdaptiveError(str(file), got, next_step="replay it with the policy that decided")
        count += len(decisions)
    return count


def _cut_to_whole_lines(file: Path) -> None:
    """Remove the incomplete line that a killed process has left."""
    if file.exists() and file.stat().st_size:
        with file.open("r+b") as stream:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as written:
                whole = written.rfind(b"\n") + 1
            stream.truncate(whole)


def digest(table: VariantTable) -> str:
    """SHA-256 of a table."""
    return hashlib.sha256(table.to_json().encode()).hexdigest()
