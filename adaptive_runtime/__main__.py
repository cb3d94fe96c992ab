"""`python -m adaptive_runtime` is `autotailor-runtime`."""

import sys

from adaptive_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
