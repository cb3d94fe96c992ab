"""Decisions of a deployed model: their inputs, their content with reasons, policies, logs of bounded size, and replay.

Decisions are plain tuples, since a request waits for them; the log, lines of JSON in a file, checks their values.
"""

import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TextIO

from pydantic import Field, PlainSerializer, ValidationError

from adaptive_runtime.base.closing import Closing
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.numbers import NotNegative, Share
from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors, VariantTable
from profiling_agents.messages import Digest, Message, one_line

Step = Literal["start", "stay", "down", "up", "hurry"]


class DeviceContext(Message):
    """The device apart from its load, as rules see it. charging: it has a power supply; memory: of all; None: not sensed."""

    battery: Share | None = None
    charging: bool | None = None
    memory_available_mib: NotNegative | None = None
    memory_total_mib: NotNegative | None = None
    temperature_c: float | None = None

    @property
    def memory_share(self) -> float | None:
        """Free share of the memory."""
        if self.memory_available_mib is None or not self.memory_total_mib:
            return None
        return min(1.0, self.memory_available_mib / self.memory_total_mib)


class DecisionInputs(NamedTuple):
    """All inputs of a policy at one time.

    now_s: of a monotonic clock. factors: forecast for the time until the next decision. ratio: measured over predicted latency
    of the running variant since the last decision; None: it did not run. load: index; None: not sensed. without: variants that
    do not work and cannot be chosen. cold: variants that would have to be loaded first. for_run: the limits apply only to the
    next run of a request, for which another variant may be chosen. device: set if rules decide. late: whether a request since
    the last decision exceeded its budget. described: notes on variants over several devices, which reasons quote.
    """

    now_s: float
    limits: ChoiceLimits
    factors: LoadFactors = LoadFactors()
    ratio: Annotated[float, Field(gt=0)] | None = None
    load: float | None = None
    without: frozenset[int] = frozenset()
    cold: frozenset[int] = frozenset()
    for_run: bool = False
    late: bool = False
    device: DeviceContext | None = None
    described: Mapping[int, str] = {}


class ChoiceState(NamedTuple):
    """The memory of a policy. running: None before the start. better_since_s: time since which a better variant would fit.

    switched_s: times of the switches in the last minute. went_up_s: time of the last switch up, until a switch down. dwell_s:
    time for which a better variant now has to fit; None: the policy's initial value. If rules decide: holding: which of their
    conditions hold; mu: by the battery; rule: the current objective in words.
    """

    running: int | None = None
    better_since_s: float | None = None
    switched_s: tuple[float, ...] = ()
    went_up_s: float | None = None
    dwell_s: float | None = None
    holding: tuple[bool, ...] = ()
    mu: float | None = None
    rule: str | None = None


class Decision(NamedTuple):
    """The variant to run from now on; for step `hurry`, for one run. within: it keeps all limits, as far as is known.

    effective_ms: its expected latency at the policy's quantile. reason: in words and numbers. meanwhile: the variant that runs
    until this one is loaded; None: it runs at once. rule: the objective in words, if rules decide. adapts_weights: whether
    weights may adapt to images. after: the next state; logs leave it out, since it follows from the lines before.
    """

    now_s: float
    step: Step
    variant: int
    name: str
    within: bool
    effective_ms: float
    accuracy: float
    reason: str
    meanwhile: int | None = None
    rule: str | None = None
    adapts_weights: bool = True
    after: ChoiceState = ChoiceState()

    @property
    def logged(self) -> "Decision":
        """The decision as a log has it, without the next state."""
        return self._replace(after=ChoiceState())


ChoicePolicy = Callable[[ChoiceState, DecisionInputs], Decision]
"""A pure function of state and inputs: the same ones give the same decision, whose `after` is the next state."""
DECISION = '{"inputs":'
LOG = logging.getLogger("adaptive_runtime")
BYTES_PER_MIB = 1 << 20
BY_NAME = PlainSerializer(lambda fields: {name: one for name, one in fields._asdict().items() if name != "after"})


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


class DecisionLog(Closing):
    """Appends a section to a log; a line is in the file when `append` returns. policy: the text of rules.

    most_mib: a larger file is renamed to `earlier`, and a new one is begun, which can be replayed by itself. AdaptiveError: the
    file cannot be written. If a later write fails, one line is logged, and decisions continue without the log.
    """

    def __init__(
        self, file: Path, table: VariantTable, state: ChoiceState, policy: str | None = None, most_mib: float = inf
    ) -> None:
        self.file, self._most_bytes = file, most_mib * BYTES_PER_MIB
        self.earlier = file.with_name(f"{file.stem}.1{file.suffix}")
        self._stream: TextIO | None = None
        self._table, self._state, self._policy = table, state, policy
        try:
            _cut_to_whole_lines(file)
            self._begin(table, state, policy)
        except OSError as error:
            self.close()
            raise AdaptiveError(str(file), f"cannot be written ({error.strerror})") from error

    def append(self, inputs: DecisionInputs, decision: Decision) -> None:
        """Append one decision."""
        if self._stream is None:
            return
        try:
            if os.fstat(self._stream.fileno()).st_size > self._most_bytes:
                self._begin_anew(self._table, self._state, self._policy)
            self._stream.write(LoggedDecision(inputs=inputs, decision=decision.logged).model_dump_json() + "\n")
        except OSError as error:
            self._give_up(error)
        self._state = decision.after

    def go_on(self, table: VariantTable, state: ChoiceState, policy: str | None = None) -> None:
        """Log decisions with another table from now on, in a new file."""
        if self._stream is not None:
            try:
                self._begin_anew(table, state, policy)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file, even if the disk is full; later decisions are not logged."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
            self._stream = None

    def _begin(self, table: VariantTable, state: ChoiceState, policy: str | None) -> None:
        self._table, self._state, self._policy = table, state, policy
        self._stream = self.file.open("a", encoding="utf-8", buffering=1)
        self._stream.write(DecisionLogHead(table=digest(table), state=state, policy=policy).model_dump_json() + "\n")

    def _begin_anew(self, table: VariantTable, state: ChoiceState, policy: str | None) -> None:
        self.close()
        self.file.replace(self.earlier)
        self._begin(table, state, policy)

    def _give_up(self, error: OSError) -> None:
        LOG.warning("%s cannot be written (%s); decisions are not recorded any more", self.file, error.strerror)
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
            decision = policy(state, line.inputs)
            state = decision.after
            if decision.logged != line.decision:
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
