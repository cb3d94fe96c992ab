"""Settings that count in a key: all but those that are marked at their field."""

from typing import Annotated

from pydantic import BaseModel, Field

from tasks.base.artifacts import OutsideKey, key_settings


class Images(BaseModel):
    count: int = 5
    threads: Annotated[int, OutsideKey("the same images")] = Field(default=2, ge=1)


class Times(BaseModel):
    rounds: int = 1


class Both(Images, Times):
    inner: Images = Images()
    others: tuple[int, ...] = ()


def test_marked_fields_are_outside_also_those_of_settings_inside() -> None:
    assert key_settings(Both()) == {"count": 5, "rounds": 1, "inner": {"count": 5}, "others": []}


def test_settings_that_several_stages_share_count_by_their_class() -> None:
    assert key_settings(Both(count=7), Images) == {"count": 7}
    assert key_settings(Both(), Times) == {"rounds": 1}
    assert key_settings(Both(), Images, Times) == {"count": 5, "rounds": 1}


def test_a_marked_field_is_validated_as_any_other() -> None:
    assert Images.model_json_schema()["properties"]["threads"] == {
        "default": 2,
        "minimum": 1,
        "title": "Threads",
        "type": "integer",
    }
