"""Networks of Hugging Face's transformers become SuperNets as they are: one of each kind; `tests/nightly/ir` has twenty."""

from pathlib import Path

import onnx
import pytest
import torch

import tailor_ir
from tests.integration.ir.small_transformers import STEPS, TOKENS, check, made
from tests.support.ir.onnx_files import answers, assert_close, check_forms, run

transformers = pytest.importorskip("transformers")


@pytest.mark.long
@pytest.mark.parametrize("name", ["BERT", "Llama", "Swin"])
def test_a_network_compiles_and_its_subnets_agree(name: str, tmp_path: Path) -> None:
    net = check(transformers, name, tmp_path)
    assert net.structure.graph.outputs == ("logits",)
    assert net.remarks == ()


@pytest.mark.long
def test_heads_that_share_keys_and_values_are_cut_in_whole_groups() -> None:
    network, example = made(transformers, "Llama")
    net = tailor_ir.compile(network, example)
    heads = [variable for variable in net.space.variables if variable.kind == "heads"]
    assert [variable.choices for variable in heads] == [(1, 2)] * 2, "keys and values of two heads, queries of four"
    smaller = net.build(net.space.canonical({heads[0].name: 1}))
    widths = sorted({tensor.shape for tensor in smaller.parameters() if tensor.ndim == 2})
    assert (12, 48) in widths
    assert (24, 48) in widths


@pytest.mark.long
def test_tied_embeddings_stay_tied() -> None:
    model, example = made(transformers, "GPT-2")
    net = tailor_ir.compile(model, example)
    tied = [name for name in net.structure.graph.parameters if net.structure.graph.shapes[name] == (100, 48)]
    assert len(tied) == 1
    assert torch.equal(net.elastic.tensor(tied[0]), model.get_input_embeddings().weight)  # type: ignore[operator]


@pytest.mark.long
def test_states_for_the_next_call_are_left_out_with_a_word() -> None:
    sizes = {"hidden_size": 16, "attention_hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    network = transformers.RwkvForCausalLM(transformers.RwkvConfig(vocab_size=50, context_length=8, **sizes)).eval()
    tokens = torch.randint(0, 50, (1, 4))
    net = tailor_ir.compile(network, tokens)
    assert net.structure.graph.outputs == ("logits",)
    (remark,) = (line for line in net.remarks if "use_cache" in line)
    assert remark.startswith("5 tensors that the network gives for its next call")
    network.config.use_cache = False
    assert not any("use_cache" in line for line in tailor_ir.compile(network, tokens).remarks)


@pytest.mark.few("BERT")
@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "RoBERTa", "GPT-2"])
@pytest.mark.filterwarnings("ignore")
def test_files_of_torchs_default_exporter_with_masks_compile(name: str, tmp_path: Path) -> None:
    model, _ = made(transformers, name)
    tokens, mask = torch.randint(2, TOKENS, (3, STEPS)), torch.ones(3, STEPS, dtype=torch.int64)
    mask[1, -4:] = 0
    model.config.use_cache = False  # type: ignore[union-attr]
    file, samples = tmp_path / "net.onnx", {0: torch.export.Dim("n")}
    given = {"input_ids": tokens, "attention_mask": mask}
    torch.onnx.export(model, (), file, kwargs=given, dynamic_shapes=dict.fromkeys(given, samples), verbose=False)
    net = tailor_ir.compile(file)
    check_forms(net, tmp_path)
    assert net.space.distinct > 100
    net.elastic.activate(net.max_config)
    for batch in (1, 3):
        arrays = [one[-batch:].numpy() for one in given.values()]
        assert_close(run(onnx.load(file), *arrays), answers(net.elastic, arrays), 1e-4)
