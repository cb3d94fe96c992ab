"""`compile --view`: where the page goes, and what is refused."""

import json
import re
from pathlib import Path

import onnx
import pytest
import timm
import torch

import tailor_ir
from flows.cli import main
from flows.cli.arguments import parse

ODD = "/<b>&'\"</b><script>alert(1)</script>/Conv"


@pytest.mark.parametrize(
    ("words", "overrides", "view"),
    [
        (["compile"], (), False),
        (["compile", "--view"], (), True),
        (["compile", "--view", "model=timm"], ("model=timm",), True),
        (["compile", "--view", "+preset=quick", "data=digits"], ("+preset=quick", "data=digits"), True),
        (["compile", "--view", "~space.depth"], ("~space.depth",), True),
        (["compile", "model=timm", "--view", "page.html"], ("model=timm",), Path("page.html")),
        (["compile", "--view", "page.html", "model=timm"], ("model=timm",), Path("page.html")),
        (["compile", "--view=page.html", "model=timm"], ("model=timm",), Path("page.html")),
        (["compile", "--view", "--json", "x.json"], (), True),
    ],
)
def test_view_alone_takes_no_override_for_its_file(
    words: list[str], overrides: tuple[str, ...], view: Path | bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = parse(words)
    assert (found.overrides, found.view) == (overrides, view)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "--view"], "--view: is not a flag of 'run'; allowed: with compile"),
        (["search", "--view", "page.html"], "--view: is not a flag of 'search'; allowed: with compile"),
        (["compile", "--view", "page.txt"], "--view: got 'page.txt'; allowed: a file that ends in .html"),
        (["compile", "--view", "/nowhere/page.html"], "--view: folder '/nowhere' does not exist"),
        (["compile", "--view", "--multirun", "space.depth=1,2"], "--view: shows one SuperNet"),
    ],
)
def test_bad_views_are_refused_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert main(words) == 2
    (printed,) = capsys.readouterr().err.strip().splitlines()
    assert re.match(re.escape(f"autotailor: {line}"), printed)


@pytest.fixture(scope="module")
def odd_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file in which a node has a name that no page must take for markup."""
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10, in_chans=1).eval()
    net = tailor_ir.compile(network, torch.zeros(1, 1, 32, 32))
    path = tmp_path_factory.mktemp("odd") / "network.onnx"
    net.export(net.max_config, path)
    model = onnx.load(path)
    next(node for node in model.graph.node if node.op_type == "Conv").name = ODD
    onnx.save(model, path)
    return path


def test_compile_writes_the_page_into_the_output_folder_or_where_it_is_told(odd_network: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["compile", "model=onnx", f"model.path={odd_network}", "device=[onnxruntime]", f"output_dir={out}"]
    words.append("data.channels=1")
    result = tmp_path / "result.json"
    assert main([*words, "--json", str(result), "--view"]) == 0
    assert json.loads(result.read_text())["view"] == str(out / "supernet.html")
    html = (out / "supernet.html").read_text()
    assert html.count("<script>") == 1
    assert "&lt;b&gt;&amp;&#39;&#34;&lt;/b&gt;&lt;script&gt;alert(1)" in html
    told = tmp_path / "told.html"
    assert main([*words, "--view", str(told)]) == 0
    assert told.read_text() == html
