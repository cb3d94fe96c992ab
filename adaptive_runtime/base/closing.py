"""What is closed at the end of a `with` statement."""

from types import TracebackType
from typing import Self


class Closing:
    """Base of classes with a method `close`, which a `with` statement calls at its end."""

    def close(self) -> None:
        """Free all resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
