"""A copy of the exported files of a device under names for people: `2ms-resnet26-0123abcd.onnx`, with its card.

The folder is for people and applications; no stage reads it. Each file is replaced atomically, and `index.json` is written
last.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.samples.inputs import VOCABULARY_FILE
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.exports import AS_GIVEN, EXPORTS_FILE, Card, ExportIndex, Exports, IndexedWinner
from tasks.export.card import card_files

INDEX_FILE = "index.json"
DIGITS = 8

Content = Path | bytes


def write_readable(exported: Path, folder: Path) -> None:
    """Copy the files of stage export from `exported` into `folder`, where they can be changed without harm.

    Files of an earlier run are removed if unchanged. Other files stay; if one has a name that is needed, it is renamed to
    `NAME.kept-1`. UserError if the folder cannot be written.
    """
    exports = Exports.read(exported / EXPORTS_FILE)
    try:
        _write(exports, exported, folder)
    except OSError as error:
        raise UserError(
            f"folder '{folder}'",
            f"cannot be written ({error.strerror})",
            next_step="the files are in the stage's folder, too",
        ) from error


def _write(exports: Exports, exported: Path, folder: Path) -> None:
    contents, winners = _contents(exports, exported)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = _earlier(folder)
    index = ExportIndex(winners=winners, sha256={name: _sha256(content) for name, content in contents.items()})
    index.model_copy(update={"sha256": {**earlier, **index.sha256}}).write(
        folder / INDEX_FILE
    )  # a crash then forgets no file
    for name, content in contents.items():
        _place(content, folder / name, index.sha256[name], earlier.get(name))
    for name in earlier.keys() - contents.keys():
        _remove(folder, name, earlier[name])
    index.write(folder / INDEX_FILE)


def _contents(exports: Exports, exported: Path) -> tuple[dict[str, Content], tuple[IndexedWinner, ...]]:
    """The contents of the folder by name, and the winners of the index with the names of their files."""
    cards = {card.digest: card for card in exports.subnets}
    contents: dict[str, Content] = {}
    winners = []
    stems = readable_names(exports)
    for digest, budget_ms in _listed(exports):
        card, stem = cards[digest], stems[digest]
        names = {
            name: f"{stem}{name.removeprefix(card.digest)}" for file in card.files.values() for name in file.written
        }
        own: dict[str, Content] = {shown: exported / name for name, shown in names.items()}
        own |= {f"{stem}{suffix}": content for suffix, content in card_files(_renamed(card, names)).items()}
        contents |= own
        winners.append(
            IndexedWinner(
                budget_ms=budget_ms,
                measured_ms=card.latency.p50_ms,
                accuracy=card.accuracy,
                digest=card.digest,
                files=tuple(own),
            )
        )
    if (vocabulary := exported / VOCABULARY_FILE).is_file():
        contents[vocabulary.name] = vocabulary
    if exports.bundle is not None and exports.bundle.folder is not None:
        bundle = exported / exports.bundle.folder
        contents |= {f"{bundle.name}/{file.name}": file for file in sorted(bundle.iterdir())}
    return contents, tuple(winners)


def _listed(exports: Exports) -> list[tuple[str, float]]:
    """Digest and budget [ms] of each winner; then the network as it was given, by its own latency, unless it is a winner."""
    listed = [(row.digest, row.budget_ms) for row in exports.winners]
    known_ms = {card.digest: card.latency.p50_ms for card in exports.subnets}
    given_ms = None if any(digest == AS_GIVEN for digest, _ in listed) else known_ms.get(AS_GIVEN)
    return listed if given_ms is None else [*listed, (AS_GIVEN, given_ms)]


def readable_names(exports: Exports) -> dict[str, str]:
    """Prefix of the names of a winner's files, by digest. A SubNet that wins several budgets appears once."""
    cards = {card.digest: card for card in exports.subnets}
    least_ms: dict[str, float] = {}
    for row in sorted(exports.winners, key=lambda row: row.budget_ms):
        least_ms.setdefault(row.digest, row.budget_ms)
    networks = {digest: re.sub(r"[^\w.-]+", "-", card.made_from.network["name"]) for digest, card in cards.items()}
    named = {digest: f"{ms:g}ms-{networks[digest]}-{digest[:DIGITS]}" for digest, ms in least_ms.items()}
    return {digest: named.get(digest, f"{networks[digest]}-{digest}") for digest, _ in _listed(exports)}


def _renamed(card: Card, names: Mapping[str, str]) -> Card:
    """The card with the names of its files in the folder."""
    files = {
        name: file.model_copy(
            update={
                "sha256": {names[own]: sha256 for own, sha256 in file.sha256.items()},
                "examples": {names[own]: sha256 for own, sha256 in file.examples.items()},
            }
        )
        if file.sha256
        else file
        for name, file in card.files.items()
    }
    return card.model_copy(update={"files": files})


def _earlier(folder: Path) -> dict[str, str]:
    """The files of an earlier run: sha256 by name. {} without a readable index: then all files stay."""
    try:
        return dict(ExportIndex.read(folder / INDEX_FILE).sha256)
    except UserError:
        return {}


def _sha256(content: Content) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else sha256_of(content)


def _place(content: Content, place: Path, sha256: str, earlier: str | None) -> None:
    """Put a file in its place atomically; do nothing if the same file exists."""
    if place.exists():
        found = _sha256(place) if place.is_file() else None
        if found == sha256:
            return
        if found is None or found != earlier:
            others = (place.with_name(f"{place.name}.kept-{number}") for number in count(1))
            place.rename(next(other for other in others if not other.exists()))
    place.parent.mkdir(exist_ok=True)
    if isinstance(content, bytes):
        write_bytes(place, content)
        return
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(content, temporary)
        temporary.replace(place)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _remove(folder: Path, name: str, sha256: str) -> None:
    """Remove a file of an earlier run unless somebody changed it, and its subfolder if it is then empty."""
    place = folder / name
    if place.is_file() and _sha256(place) == sha256:
        place.unlink()
        if place.parent != folder and not any(place.parent.iterdir()):
            place.parent.rmdir()
