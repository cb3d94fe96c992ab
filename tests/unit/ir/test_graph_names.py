"""Files that leave the project call their graph by a name of ours: runtimes report names of graphs."""

from pathlib import Path

import onnx
import torch
from torch import nn

import tailor_ir


class SecretProjectNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).relu().mean((2, 3)))


def test_exported_files_do_not_name_the_class(tmp_path: Path) -> None:
    net = tailor_ir.compile(SecretProjectNet().eval(), torch.randn(1, 3, 8, 8), {"*.width_mult": [0.5, 1]})
    net.export(net.max_config, tmp_path / "plain.onnx")
    net.export(net.max_config, tmp_path / "folded.onnx", fold_batch_norm=True)
    net.export_together({net.space.digest(net.max_config): (net.max_config, None)}, tmp_path)
    files = sorted(tmp_path.rglob("*.onnx"))
    assert len(files) == 3
    for file in files:
        assert onnx.load(file, load_external_data=False).graph.name == "subnet"
        assert b"SecretProject" not in file.read_bytes()
