"""The served choice, saved in a file, with which a restarted service continues."""

import logging
from pathlib import Path

from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import replace_file
from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.pool import Variant
from profiling_agents.messages import Digest, Message, one_line

LOG = logging.getLogger("adaptive_runtime.server")
FILE = "serving.json"


class ServedChoice(Message):
    """The last served choice. bundle: digest of the manifest that it belongs to."""

    version: int = 1
    bundle: Digest
    subnet: str
    exit: str | None
    early: bool
    form: BundleFormat | None = None

    @property
    def variant(self) -> Variant:
        """The choice as the pool's variant."""
        return Variant(self.subnet, self.exit, self.early, self.form)


class ChoiceMemory:
    """The file of a service in a folder, which is created if missing. AdaptiveError: it cannot be created.

    written: the last saved choice; None: none yet.
    """

    def __init__(self, folder: Path, bundle: str) -> None:
        self.file, self._bundle = folder / FILE, bundle
        self.written: Variant | None = None
        self._failed: str | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AdaptiveError(f"--state '{folder}'", f"cannot be made ({error.strerror})") from error

    def read(self) -> Variant | None:
        """The last served choice of this bundle; None: no choice, or a damaged file, which is logged."""
        try:
            found = ServedChoice.model_validate_json(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            LOG.warning("'%s' cannot be read (%s); the choice is made anew", self.file, error.strerror)
            return None
        except ValidationError as error:
            LOG.warning("'%s' is damaged (%s); the choice is made anew", self.file, one_line(error))
            return None
        return found.variant if found.bundle == self._bundle else None

    def write(self, serving: Variant) -> None:
        """Save the serving choice. A failure is logged once, and the next call tries again."""
        digest, exit, early, form, _ = serving  # other devices may be unavailable after a restart
        choice = ServedChoice(bundle=self._bundle, subnet=digest, exit=exit, early=early, form=form)
        content = choice.model_dump_json()
        try:
            replace_file(self.file, content)
        except OSError as error:
            if self._failed != error.strerror:
                self._failed = error.strerror
                LOG.warning("'%s' cannot be written (%s): a restart would forget the choice", self.file, error.strerror)
            return
        self.written, self._failed = serving, None
