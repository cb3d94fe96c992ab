"""The local socket of a service for programs on the same device, in any language: binary frames, served like HTTP requests.

[The service](docs/runtime_service.md#from-other-languages) has the frames; `adaptive_runtime/clients/c/` has a client.
"""

from adaptive_runtime.server.local.listener import serve_local
from adaptive_runtime.server.local.socket_file import listening

__all__ = ["listening", "serve_local"]
