"""Option files of a user's own folder (`--config-dir`), which Hydra reads with the names of this version."""

from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from tasks.base.earlier import config_now, default_now, earlier_groups

SCHEME = "own"


class OwnFiles(FileConfigSource):
    """A folder of option files. A group that has a new name is found by it, too."""

    @staticmethod
    def scheme() -> str:
        """Its word before `://` in Hydra's search path."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """A file, with its options and its list of defaults."""
        path = self._present(config_path)
        found = super().load_config(path)
        if isinstance(found.config, DictConfig):
            content: Any = OmegaConf.to_container(found.config, resolve=False)
            defaults = content.pop("defaults", None)
            earlier, group = (one.rpartition("/")[0] for one in (path, config_path))
            if found.header["package"] or not group:
                content = config_now(content)
            elif set(now := config_now({earlier: content})) <= {group}:
                content = now.get(group, {})
            else:  # some options belong to another group now
                content, found.header["package"] = now, "_global_"
                defaults = [_of_group(one, group) for one in defaults or []]
            if isinstance(defaults, list):
                content = {"defaults": [default_now(one) for one in defaults], **content}
            found.config = OmegaConf.create(content)
        return found

    def is_group(self, config_path: str) -> bool:
        """Whether a folder of this name, or of its earlier name, is there."""
        return super().is_group(self._present(config_path))

    def is_config(self, config_path: str) -> bool:
        """Whether a file of this name, or in a folder of the group's earlier name, is there."""
        return super().is_config(self._present(config_path))

    def _present(self, config_path: str) -> str:
        group, sign, name = config_path.partition("/")
        paths = [config_path, *(f"{earlier}{sign}{name}" for earlier in earlier_groups(group))]
        held = (one for one in paths if super(OwnFiles, self).is_config(one) or super(OwnFiles, self).is_group(one))
        return next(held, config_path)


def _of_group(entry: Any, group: str) -> Any:
    """An entry that names another file of the group, with the group."""
    return f"/{group}/{entry}@{group}" if isinstance(entry, str) and entry != "_self_" else entry


SourcesRegistry.instance().register(OwnFiles)
