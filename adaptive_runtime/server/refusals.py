"""A request that gets no answer: its status and its reason in one line."""


class RequestRefused(Exception):
    """One line for the client. outcome: its category in the metrics. retry_after_s: with 429, time until room is expected."""

    def __init__(self, status: int, line: str, *, outcome: str = "refused", retry_after_s: float = 1.0) -> None:
        super().__init__(" ".join(line.split()))
        self.status, self.outcome, self.retry_after_s = status, outcome, retry_after_s
