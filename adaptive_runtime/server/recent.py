"""Recent activity of a service: answers with their latencies, decisions with their reasons, and the served choice.

The choice is saved in a file, with which a restarted service continues.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import replace_file
from adaptive_runtime.base.weight_options import WeightEvent
from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.model.answers import ModelAnswer, ModelState
from adaptive_runtime.policy import Decision
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.protocol import by_sample
from profiling_agents.messages import Digest, Message, one_line

LOG = logging.getLogger("adaptive_runtime.server")
FILE = "serving.json"


class ServedChoice(Message):
    """The last served choice. bundle: digest of the manifest that it belongs to."""

    version: int = 1
    bundle: Digest
    subnet: str
    exit: str | None
    early: bool
    form: BundleFormat | None = None

    @property
    def variant(self) -> Variant:
        """The choice as the pool's variant."""
        return Variant(self.subnet, self.exit, self.early, self.form)


class ChoiceMemory:
    """The file of a service in a folder, which is created if missing. AdaptiveError: it cannot be created.

    written: the last saved choice; None: none yet.
    """

    def __init__(self, folder: Path, bundle: str) -> None:
        self.file, self._bundle = folder / FILE, bundle
        self.written: Variant | None = None
        self._failed: str | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AdaptiveError(f"--state '{folder}'", f"cannot be made ({error.strerror})") from error

    def read(self) -> Variant | None:
        """The last served choice of this bundle; None: no choice, or a damaged file, which is logged."""
        try:
            found = ServedChoice.model_validate_json(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            LOG.warning("'%s' cannot be read (%s); the choice is made anew", self.file, error.strerror)
            return None
        except ValidationError as error:
            LOG.warning("'%s' is damaged (%s); the choice is made anew", self.file, one_line(error))
            return None
        return found.variant if found.bundle == self._bundle else None

    def write(self, serving: Variant) -> None:
        """Save the serving choice. A failure is logged once, and the next call tries again."""
        digest, exit, early, form, _ = serving  # other devices may be unavailable after a restart
        choice = ServedChoice(bundle=self._bundle, subnet=digest, exit=exit, early=early, form=form)
        content = choice.model_dump_json()
        try:
            replace_file(self.file, content)
        except OSError as error:
            if self._failed != error.strerror:
                self._failed = error.strerror
                LOG.warning("'%s' cannot be written (%s): a restart would forget the choice", self.file, error.strerror)
            return
        self.written, self._failed = serving, None


MOST_ANSWERS = 300
MOST_DECISIONS = 50


class LoggedDecision(Message):
    """A change of the serving variant, or of the rule that defines the best one. at_s: monotonic clock.

    step: 'switch', 'taken out', 'rule', 'weights: …', or a policy's name for it.
    """

    at_s: float
    step: str
    name: str
    reason: str


class AnsweredRequest(NamedTuple):
    """A given answer. waited_ms: time in the queue. late_ms: after its deadline; 0: in time."""

    at_s: float
    latency_ms: float
    waited_ms: float
    late_ms: float
    subnet: str
    exit: str


class RecentService:
    """Recent answers and decisions. All calls come from the event loop's thread."""

    def __init__(self, state: ModelState) -> None:
        self.started_s = time.monotonic()
        self.outcomes: Counter[str] = Counter()
        self.answers: deque[AnsweredRequest] = deque(maxlen=MOST_ANSWERS)
        self.decisions: deque[LoggedDecision] = deque(maxlen=MOST_DECISIONS)
        self._serving, self._taken_out = state.serving, set(state.taken_out)
        self._decided: Decision | None = None
        self._weights: WeightEvent | None = None
        self._tell("start", name_of(state.serving), "it serves first")
        for name, line in state.taken_out.items():
            self._tell("taken out", name, line)

    def answered(self, answer: ModelAnswer, waited_ms: float, late_ms: float) -> None:
        """Record one more answer."""
        self.answers.append(
            AnsweredRequest(
                at_s=time.monotonic(),
                latency_ms=answer.latency_ms,
                waited_ms=waited_ms,
                late_ms=late_ms,
                subnet=by_sample(answer.subnets),
                exit=by_sample(answer.exits),
            )
        )

    def observe(self, state: ModelState) -> None:
        """Record changes since the last call."""
        for name in state.taken_out.keys() - self._taken_out:
            self._tell("taken out", name, state.taken_out[name])
        self._taken_out = set(state.taken_out)
        if state.weights is not None:
            self._follow(state.weights.events)
        if state.adapting is not None:
            self._decide(state.adapting.decision)
        elif state.serving != self._serving:
            before, self._serving = self._serving, state.serving
            reason = "it was taken out" if before.files in state.taken_out else "another one was wanted"
            self._tell("switch", name_of(state.serving), f"in the place of {name_of(before)}: {reason}")

    def _decide(self, decision: Decision | None) -> None:
        """Record a decision of the model itself, unless it changes nothing."""
        before = self._decided
        if decision is not None and decision != before:
            if decision.step != "stay":
                self._tell(decision.step, decision.name, decision.reason)
            elif before is not None and decision.rule != before.rule:
                self._tell("rule", decision.name, decision.reason)
        self._decided = decision

    def _follow(self, events: Sequence[WeightEvent]) -> None:
        """Record events of adapting weights since the last call."""
        known = next((at for at in range(len(events) - 1, -1, -1) if events[at] is self._weights), -1)
        for event in events[known + 1 :]:
            self._tell(f"weights: {event.kind}", event.subnet, f"after {event.image} images: {event.reason}")
        self._weights = events[-1] if events else self._weights

    def percentiles_ms(self) -> dict[str, float]:
        """p50, p95 and p99 of the recent latencies [ms], with waiting; empty without answers."""
        latencies = [row.latency_ms + row.waited_ms for row in self.answers]
        if not latencies:
            return {}
        return dict(zip(("p50", "p95", "p99"), np.percentile(latencies, (50, 95, 99)).tolist(), strict=True))

    def _tell(self, step: str, name: str, reason: str) -> None:
        self.decisions.append(LoggedDecision(at_s=time.monotonic(), step=step, name=name, reason=reason))


def name_of(variant: Variant) -> str:
    """Name of a variant for people."""
    if variant.early:
        return f"{variant.files}, by thresholds"
    return variant.files if variant.exit is None else f"{variant.files}, up to {variant.exit}"
