"""Artifacts between stages: folders named by digest, complete or absent, whose content is checked before use."""

from tasks.artifacts.aside import set_aside
from tasks.artifacts.digests import damage, digest_of
from tasks.artifacts.files import json_bytes, read_json, write_bytes, write_json
from tasks.artifacts.folders import RESULT_FILE, MadeFrom, StageFolder, Store
from tasks.artifacts.keys import OutsideKey, key_settings
from tasks.artifacts.lines import append_line, line_of, read_lines, whole_lines
from tasks.artifacts.measured import NO_STORE, SubNetLines, SubNetStore

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
