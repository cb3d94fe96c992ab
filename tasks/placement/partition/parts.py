"""The parts of a planned SubNet as files with a manifest: run one after the other, they equal the whole SubNet."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from adaptive_runtime.bundle.chains import PARTS_FILE, NcnnPair, PartsManifest, PartTensor, SubnetPart
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.base.schemas.placed import StayRow
from tasks.placement.partition.checked import digests_of, export_checked, tensor_of
from tasks.placement.partition.ncnn_files import write_ncnn


def write_parts(
    net: SuperNet,
    config: Mapping[str, Choice],
    stays: Sequence[StayRow],
    home: str,
    folder: Path,
    statistics: Statistics | None = None,
    *,
    ncnn: bool = False,
) -> PartsManifest:
    """Write the parts of a SubNet, one for each of `stays` (segments of a plan), as `0.onnx`, … with `parts.json`.

    home: the device that has the input. ncnn: also write files of ncnn beside each. UserError: the parts' answer differs from
    the whole SubNet's by more than 1e-5, or there are no files of ncnn that agree up to 1e-4.
    """
    exported = export_checked(net, config, [stay.operators for stay in stays], folder, statistics)
    files = exported.files
    pairs: Sequence[NcnnPair | None] = [None] * len(files)
    if ncnn:
        pairs = write_ncnn(folder, exported, net.input_shape(config))
    parts = tuple(
        SubnetPart(
            file=name,
            ncnn=pair,
            device=stay.device,
            inputs=tuple(tensor_of(one) for one in session.get_inputs()),
            outputs=tuple(tensor_of(one) for one in session.get_outputs()),
            operators=len(stay.operators),
            macs=own,
        )
        for name, pair, stay, session, own in zip(files, pairs, stays, exported.sessions, exported.macs, strict=True)
    )
    given = {tensor.name: tensor for part in parts for tensor in part.outputs}
    manifest = PartsManifest(
        digest=net.space.digest(config),
        files=digests_of(folder, files, pairs),
        home=home,
        input=PartTensor(name=exported.input, shape=net.input_shape(config)),
        outputs=tuple(given[name] for name in dict.fromkeys(exported.outputs)),
        parts=parts,
        difference=exported.difference,
    )
    write_bytes(folder / PARTS_FILE, manifest.to_json().encode())
    return manifest
