"""Accuracies of SubNets with every layer in int8, as those in fp32 are measured: each with ranges of its own.

So what is predicted from accuracies in fp32 is predicted from these in the same way: the sensitivities of int8 are those of the
largest SubNet with one variable changed at a time, in int8 (`tasks.predict.accuracy.sensitivities`).
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tailor_ir import Config, SuperNet
from tasks.artifacts import SubNetLines
from tasks.evaluation.onnx_files import OnnxNetwork
from tasks.evaluation.subnets import Accuracy, EvaluationData, count_correct, statistics_of
from tasks.progress import Progress
from tasks.quantise.mixed import CalibratedSubNet
from tasks.quantise.settings import Settings


def int8_accuracies(
    net: SuperNet,
    configs: Sequence[Config],
    settings: Settings,
    data: EvaluationData,
    file: Path,
    progress: Progress,
    name: str = "accuracy in int8",
) -> list[Accuracy]:
    """Accuracy of each SubNet in order, as onnxruntime computes it. Each is a line of `file`; a second call goes on."""
    lines = SubNetLines(file, "digest")
    by_digest = {net.space.digest(config): config for config in configs}
    known = {line["digest"]: Accuracy.of(line) for line in lines.read(by_digest)}
    todo = [digest for digest in by_digest if digest not in known]
    with progress.bar(name, len(by_digest), len(by_digest) - len(todo)) as bar:
        for digest in todo:
            known[digest] = _accuracy(net, by_digest[digest], settings, data)
            lines.append(known[digest].line(digest, by_digest[digest]))
            bar.advance()
    return [known[net.space.digest(config)] for config in configs]


def _accuracy(net: SuperNet, config: Config, settings: Settings, data: EvaluationData) -> Accuracy:
    with tempfile.TemporaryDirectory(prefix="autotailor-int8-") as folder:
        subnet = CalibratedSubNet.of(net, config, statistics_of(net, config, data), settings, data, Path(folder))
        return count_correct(OnnxNetwork(subnet.quantised(())), data.batches(subnet.size))
