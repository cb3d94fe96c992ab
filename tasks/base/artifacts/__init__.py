"""Artifacts between stages: folders named by digest, complete or absent, whose content is checked before use."""

from tasks.base.artifacts.files import (
    append_line,
    json_bytes,
    line_of,
    quarantine,
    read_json,
    read_lines,
    whole_lines,
    write_bytes,
    write_json,
)
from tasks.base.artifacts.folders import (
    NO_STORE,
    RESULT_FILE,
    MadeFrom,
    OutsideKey,
    StageFolder,
    Store,
    SubNetLines,
    SubNetStore,
    Workspace,
    damage,
    digest_of,
    key_settings,
)
