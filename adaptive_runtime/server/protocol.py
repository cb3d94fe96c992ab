"""Messages of the Open Inference Protocol v2 (REST), as a service accepts and returns them.

Unknown fields and parameters are refused: a misspelt deadline would otherwise be ignored.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from profiling_agents.messages import Message

VERSION = "2"
BINARY = "binary_tensor_data"
LENGTH_HEADER = "Inference-Header-Content-Length"
MOST_DEADLINE_MS = 600_000.0
Size = Annotated[int, Field(ge=0)]


class ProtocolMessage(Message):
    """Base: no conversion between kinds of JSON values."""

    model_config = ConfigDict(strict=True)


class TensorParameters(ProtocolMessage):
    """binary_data_size: bytes of the tensor behind the JSON; None: its values are in `data`."""

    binary_data_size: Size | None = None


class SentTensor(ProtocolMessage):
    """A tensor on the wire. data: its values, nested as its shape or flat; None: they follow the JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: TensorParameters = TensorParameters()
    data: Any = None


class OutputParameters(ProtocolMessage):
    """binary_data: whether the values follow the JSON; None: the request's setting for all outputs."""

    binary_data: bool | None = None


class WantedOutput(ProtocolMessage):
    """An output that the client asks for."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferParameters(ProtocolMessage):
    """deadline_ms: from the arrival of the request to its answer; None: the service's.

    binary_data_output: for all outputs. subnet: the digest of the SubNet that should answer; None: the serving one.
    """

    deadline_ms: Annotated[float, Field(gt=0, le=MOST_DEADLINE_MS)] | None = None
    subnet: str | None = None
    binary_data_output: bool = False


class InferRequest(ProtocolMessage):
    """outputs: empty: all outputs."""

    id: str = ""
    parameters: InferParameters = InferParameters()
    inputs: tuple[SentTensor, ...]
    outputs: tuple[WantedOutput, ...] = ()
