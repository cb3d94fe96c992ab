"""Numeric inputs of a sample beside its images, such as sensor values or columns of a table."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from profiling_agents.messages import Message

Size = Annotated[int, Field(ge=1)]


class NumbersPreparation(Message):
    """Preparation of a sample's numbers: subtract `mean` and divide by `deviation`, for each entry of `names`.

    names: of the first axis, such as columns of a table, or axes of a sensor. shape: of one sample.
    """

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=2)]
    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Field(gt=0)], ...]

    @property
    def line(self) -> str:
        """Names and scales, for messages."""
        rows = zip(self.names, self.mean, self.deviation, strict=True)
        return ", ".join(f"{name} {mean:.6g} ± {deviation:.6g}" for name, mean, deviation in rows)

    @model_validator(mode="after")
    def _is_of_one_axis(self) -> Self:
        sizes = {len(self.names), len(self.mean), len(self.deviation), self.shape[0]}
        if len(sizes) != 1:
            raise ValueError(f"names, mean, deviation and the first size of shape are of {sorted(sizes)} entries")
        return self
