"""Facts on exit policies, in the style of `flows.pipeline.pages.facts`."""

from flows.pipeline.pages.facts import MOST_FAILURES, Facts
from tasks.base.pages.text import count, milliseconds, percent
from tasks.exits.policies import Policies


def policies(result: Policies) -> Facts:
    """The effect of early exits on test images, for the SubNet whose early answers are the most accurate."""
    done = sum(row.thresholds is not None for row in result.subnets)
    found = {"SubNets with thresholds": f"{done} of {len(result.subnets)}", "held-out images": count(result.images)}
    best = result.best
    if best is None or best.tested is None:
        return found
    tested = best.tested
    return found | {
        "test accuracy": f"{percent(tested.accuracy)}, {tested.lost_points:+.2f} points lost",
        "expected latency": f"{milliseconds(tested.expected_ms)} instead of {milliseconds(tested.whole_ms)}",
        "p99": milliseconds(tested.p99_ms),
        "saved": percent(tested.saved),
    }


def without_thresholds(result: Policies) -> Facts:
    """Reasons why SubNets have no thresholds."""
    told = (result.reason, *(row.reason for row in result.subnets))
    reasons = list(dict.fromkeys(reason for reason in told if reason is not None))
    return {"without thresholds": "; ".join(reasons[:MOST_FAILURES])} if reasons else {}
