"""The process of a search: `python -m adaptive_runtime.local_search.child ORDER`, ORDER in JSON; progress as JSON lines.

It has the lowest priority, so that serving goes first; it still advances on a device that is always busy.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import step_back
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.local_search.proposals import LocalSearchSettings
from adaptive_runtime.local_search.running import search
from profiling_agents.messages import Message

BAD_INPUT = 2


class SearchOrder(Message):
    """Parameters of a search. images: None: they come on standard input, as an .npz file. folder: of state and results."""

    bundle: Path
    key_file: Path | None = None
    images: Path | None = None
    folder: Path
    settings: LocalSearchSettings
    niceness: int = 19


def main(text: str) -> int:
    """Run a search. Returns 0, or 2 after an event `error` with one line."""
    order = SearchOrder.model_validate_json(text)
    step_back(order.niceness)
    try:
        bundle = OpenBundle.open(order.bundle, order.key_file)
        search(bundle, order.images or io.BytesIO(sys.stdin.buffer.read()), order.folder, order.settings, _tell)
    except AdaptiveError as error:
        _tell({"event": "error", "line": str(error)})
        return BAD_INPUT
    return 0


def _tell(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
