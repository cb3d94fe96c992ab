"""Artifacts between stages: folders named by digest, complete or absent, whose content is checked before use."""

from tasks.base.artifacts.aside import set_aside
from tasks.base.artifacts.digests import damage, digest_of
from tasks.base.artifacts.files import json_bytes, read_json, write_bytes, write_json
from tasks.base.artifacts.folders import RESULT_FILE, MadeFrom, StageFolder, Store
from tasks.base.artifacts.keys import OutsideKey, key_settings
from tasks.base.artifacts.lines import append_line, line_of, read_lines, whole_lines
from tasks.base.artifacts.measured import NO_STORE, SubNetLines, SubNetStore

__all__ = [
    "NO_STORE",
    "RESULT_FILE",
    "MadeFrom",
    "OutsideKey",
    "StageFolder",
    "Store",
    "SubNetLines",
    "SubNetStore",
    "append_line",
    "damage",
    "digest_of",
    "json_bytes",
    "key_settings",
    "line_of",
    "read_json",
    "read_lines",
    "set_aside",
    "whole_lines",
    "write_bytes",
    "write_json",
]
