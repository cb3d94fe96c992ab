"""Requests and answers between an agent that pulls and its relay."""

from typing import Annotated, Literal

from pydantic import Field

from profiling_agents.messages.base import Checksum, Message, Nonce


class Pulled(Message):
    """Header of a message that an agent pulls from its relay: one request of a client, whose body follows."""

    request: Nonce
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: Annotated[str, Field(pattern=r"^/v1/[a-z]+(/[0-9]{1,15})?$")]
    lease: Annotated[str, Field(max_length=256, pattern=r"^[\x20-\x7e]*$")] = ""
    checksum: Checksum = ""


class Answered(Message):
    """Header of an answer that an agent sends to its relay; the body follows."""

    status: int = Field(ge=200, le=599)
    content_type: Annotated[str, Field(max_length=256, pattern=r"^[\x20-\x7e]*$")] = ""
    retry_after: Annotated[str, Field(pattern=r"^[0-9]{0,6}$")] = ""
    checksum: Checksum = ""
