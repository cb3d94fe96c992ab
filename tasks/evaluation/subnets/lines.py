"""Accuracies of many SubNets, each written as soon as it is known, here and in the store that stages share."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tailor_ir import Config
from tasks.base.artifacts import SubNetLines, SubNetStore, digest_of, read_lines
from tasks.base.progress import Progress
from tasks.data.problems import other_metric
from tasks.evaluation.subnets.images import EvaluationData
from tasks.evaluation.subnets.record import Accuracy
from tasks.evaluation.subnets.together import evaluated_here


def accuracy_lines(
    store: SubNetStore, supernet: Path, split: str, data: EvaluationData, own: Path, progress: Progress
) -> SubNetLines:
    """Accuracies of a SuperNet's SubNets on a split: a stage's own lines, and those in the store. supernet: its folder."""
    other = {} if data.precision is None else data.precision.key
    judged = {} if (metric := other_metric(data.problem)) is None else {"metric": metric}
    key = {"measured": "accuracy", "supernet": digest_of(supernet), "split": split, **data.counts, **other, **judged}
    key["largest"] = "stored statistics"  # until 0.16 they were computed anew, too
    return SubNetLines(own, "digest", store.open(key, progress))


def known_accuracies(file: Path) -> dict[str, Accuracy]:
    """The accuracies that `accuracies` has written, by the SubNet's digest."""
    return {line["digest"]: Accuracy.of(line) for line in read_lines(file)}


def accuracies(
    net: Any,
    configs: Sequence[Config],
    data: EvaluationData,
    file: Path | SubNetLines,
    progress: Progress,
    name: str = "accuracy",
    known: dict[str, Accuracy] | None = None,
) -> list[Accuracy]:
    """Accuracy of each SubNet, in order, as from `accuracy`, or in the precision of `data`.

    Each is written to `file`; a second call continues. known: the content of the file by digest, if the caller keeps it; new
    accuracies are added.

    SubNets with common first steps are evaluated together (`tailor_ir.subnets.prefixes`), a group at a time and all of it on
    each batch. On a CPU groups run concurrently, with one thread each: small networks gain nothing from several threads. With
    `data.workers` other processes evaluate the groups.
    """
    lines = file if isinstance(file, SubNetLines) else SubNetLines(file, "digest")
    digests = [net.space.digest(config) for config in configs]
    known = {line["digest"]: Accuracy.of(line) for line in lines.read(digests)} if known is None else known
    missing = {digest: config for digest, config in zip(digests, configs, strict=True) if digest not in known}
    evaluated = evaluated_here if data.workers is None or net.folder is None else data.workers.evaluated
    with (
        progress.bar(name, len(set(digests)), len(set(digests)) - len(missing)) as bar,
        closing(evaluated(net, missing, data)) as finished,
    ):
        for found, note in finished:
            for digest, one in found.items():
                known[digest] = one
                lines.append(one.line(digest, missing[digest]))
                bar.advance()
            bar.advance(0)  # ends the work if the run was interrupted
            bar.note(note)
    return [known[digest] for digest in digests]
