"""A server of the S3 protocol, moto's, in a process of its own: `python -m tests.support.storage.s3_server FOLDER`.

Prints its port. FOLDER/requests.txt gets a line for each request. While there is a file FOLDER/full, nothing can be written: a
quota is used up, in the words of Ceph's gateway.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

REQUESTS = "requests.txt"
FULL = "full"
QUOTA = b"<?xml version='1.0'?><Error><Code>QuotaExceeded</Code><Message>no room is left</Message></Error>"


def application(folder: Path) -> Callable[..., Iterable[bytes]]:
    """The server's answers."""
    answers, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method = request["REQUEST_METHOD"]
        with one_at_a_time:  # S3 keeps a condition and its write together; moto's threads do not
            with (folder / REQUESTS).open("a") as stream:
                stream.write(f"{method} {request['PATH_INFO']}\n")
            if method in ("PUT", "POST") and (folder / FULL).exists():
                request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
                start("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(QUOTA)))])
                return [QUOTA]
            content: Iterable[bytes] = answers(request, start)
            return content

    return answer


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, application(Path(sys.argv[1])), threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()
