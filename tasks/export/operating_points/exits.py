"""Rows of one whole SubNet and of its exits, in the measured format and in others.

Exits are measured on one device. In another format, a SubNet's exits are assumed to become slower and less accurate like the
whole SubNet.
"""

from collections.abc import Iterator

from adaptive_runtime.base.shares import clipped_share
from adaptive_runtime.model.adapting.variants import UNKNOWN_ERROR, spread_of
from tasks.base.schemas.operating_points import LevelRow
from tasks.exits.policies import SubnetPolicy


def with_exits(whole: LevelRow, own: LevelRow, policy: SubnetPolicy | None) -> Iterator[LevelRow]:
    """The rows of a whole SubNet, of each exit before its last, and of early answers by thresholds.

    own: the row of the whole SubNet in the format in which its exits were measured. policy: None if the SubNet has no exits.
    """
    yield whole
    if policy is None or whole.format == "onnx_int8":  # int8 files have no segments
        return
    full = policy.exits[-1]
    slower, lost = whole.latency_ms / own.latency_ms, own.accuracy - whole.accuracy
    error = whole.latency_error if whole.device == own.device else max(whole.latency_error, UNKNOWN_ERROR)

    def row(accuracy: float, latency_ms: float, **changed: object) -> LevelRow:
        energy_mj = None if whole.energy_mj is None else whole.energy_mj * latency_ms * slower / whole.latency_ms
        figures = {"accuracy": clipped_share(accuracy - lost), "latency_ms": latency_ms * slower}
        return whole.model_copy(update={**figures, "energy_mj": energy_mj, "latency_error": error, **changed})

    for one in policy.exits[:-1]:
        split = next(iter(one.accuracy))
        accuracy = own.accuracy + one.accuracy[split] - full.accuracy[split]
        yield row(accuracy, one.latency_ms, exit=one.exit)
    tested = policy.tested
    if policy.thresholds is not None and tested is not None:
        accuracy = own.accuracy + tested.accuracy - tested.full_accuracy
        spread = spread_of(tested.expected_ms, tested.p99_ms)
        yield row(accuracy, tested.expected_ms, early=True, latency_error=max(spread, error))
