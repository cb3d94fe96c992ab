"""A pipeline that listens to a training."""

from tasks.base.progress import Silent


class Listener(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[int] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)
