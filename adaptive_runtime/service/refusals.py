"""A request that gets no answer: its status, and one line that says why."""


class RequestRefused(Exception):
    """One line for the client. outcome: what the metrics count it as. retry_after_s: with 429, when there is room again."""

    def __init__(self, status: int, line: str, *, outcome: str = "refused", retry_after_s: float = 1.0) -> None:
        super().__init__(" ".join(line.split()))
        self.status, self.outcome, self.retry_after_s = status, outcome, retry_after_s
