"""Classes that a `with` statement closes at its end."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Base of classes with a method `close`, which a `with` statement calls at its end."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
