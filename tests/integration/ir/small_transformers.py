"""Tiny networks of Hugging Face's transformers with random weights, and what holds for each."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import tailor_ir
from tests.support.ir.invariants import EXPORT_TOLERANCE, ORIGINAL_TOLERANCE, difference

STEPS, TOKENS = 16, 100
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
TEXT = {"vocab_size": TOKENS, "max_position_embeddings": 512}
PATCHES = {"image_size": 32, "patch_size": 4}


def _detr(t: Any) -> nn.Module:
    backbone = t.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1] * 4, layer_type="basic", out_features=["stage4"]
    )
    sizes = {
        f"{side}_{name}": count for side in ("encoder", "decoder") for name, count in (("layers", 1), ("ffn_dim", 96))
    }
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = t.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=48,
        num_queries=6,
        **sizes,
        **heads,
    )
    return t.DetrForObjectDetection(config)


def _wav2vec2(t: Any) -> nn.Module:
    layers = {"conv_dim": (32,) * 3, "conv_stride": (5, 4, 2), "conv_kernel": (10, 8, 4), "num_feat_extract_layers": 3}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    return t.Wav2Vec2ForCTC(t.Wav2Vec2Config(vocab_size=32, **layers, **positions, **SIZES))


def _whisper(t: Any) -> nn.Module:
    sizes = {"d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96}
    config = t.WhisperConfig(num_mel_bins=20, max_source_positions=32, decoder_layers=1, **sizes)
    return t.models.whisper.modeling_whisper.WhisperEncoder(config)


def _deberta(t: Any) -> nn.Module:
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    return t.DebertaForSequenceClassification(t.DebertaConfig(**relative, **TEXT, **SIZES))


def _swin(t: Any) -> nn.Module:
    stages = {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    return t.SwinForImageClassification(t.SwinConfig(image_size=32, patch_size=2, **stages))


def _segformer(t: Any) -> nn.Module:
    stages = {"depths": [1] * 4, "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]}
    return t.SegformerForSemanticSegmentation(t.SegformerConfig(decoder_hidden_size=32, **stages))


def _distilbert(t: Any) -> nn.Module:
    config = t.DistilBertConfig(dim=48, n_layers=2, n_heads=4, hidden_dim=96, **TEXT)
    return t.DistilBertForSequenceClassification(config)


def _small_bert(t: Any) -> nn.Module:
    return t.BertModel(t.BertConfig(**TEXT, **SIZES | {"num_hidden_layers": 3, "hidden_size": 32}))


def _beit(t: Any) -> nn.Module:
    return t.BeitForImageClassification(
        t.BeitConfig(use_relative_position_bias=True, vocab_size=TOKENS, **PATCHES, **SIZES)
    )


def _dinov2(t: Any) -> nn.Module:
    sizes = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    return t.Dinov2ForImageClassification(t.Dinov2Config(**PATCHES, **sizes))


def _gpt2(t: Any) -> nn.Module:
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=TOKENS, n_positions=512, n_embd=48, n_layer=2, n_head=4))


def _t5(t: Any) -> nn.Module:
    return t.T5EncoderModel(
        t.T5Config(vocab_size=TOKENS, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_decoder_layers=1, num_heads=4)
    )


def _roberta(t: Any) -> nn.Module:
    config = t.RobertaConfig(pad_token_id=1, vocab_size=TOKENS, max_position_embeddings=514, **SIZES)
    return t.RobertaForSequenceClassification(config)


def _yolos(t: Any) -> nn.Module:
    return t.YolosForObjectDetection(
        t.YolosConfig(num_detection_tokens=5, **PATCHES | {"image_size": [32, 32]}, **SIZES)
    )


WITH_TEXT: dict[str, Callable[[Any], nn.Module]] = {
    "BERT": lambda t: t.BertForSequenceClassification(t.BertConfig(**TEXT, **SIZES)),
    "DistilBERT": _distilbert,
    "ALBERT": lambda t: t.AlbertForSequenceClassification(t.AlbertConfig(embedding_size=24, **TEXT, **SIZES)),
    "DeBERTa": _deberta,
    "RoBERTa": _roberta,
    "MiniLM": _small_bert,
    "GPT-2": _gpt2,
    "Llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(num_key_value_heads=2, **TEXT, **SIZES)),
    "T5": _t5,
}
OTHERS: dict[str, tuple[Callable[[Any], nn.Module], tuple[int, ...]]] = {
    "Swin": (_swin, (1, 3, 32, 32)),
    "ViT": (lambda t: t.ViTForImageClassification(t.ViTConfig(**PATCHES, **SIZES)), (1, 3, 32, 32)),
    "DeiT": (lambda t: t.DeiTForImageClassification(t.DeiTConfig(**PATCHES, **SIZES)), (1, 3, 32, 32)),
    "BEiT": (_beit, (1, 3, 32, 32)),
    "SegFormer": (_segformer, (1, 3, 64, 64)),
    "DETR": (_detr, (1, 3, 64, 64)),
    "YOLOS": (_yolos, (1, 3, 32, 32)),
    "Wav2Vec2": (_wav2vec2, (1, 1600)),
    "Whisper": (_whisper, (1, 20, 64)),
    "CLIP": (lambda t: t.CLIPVisionModel(t.CLIPVisionConfig(**PATCHES, **SIZES)), (1, 3, 32, 32)),
    "DINOv2": (_dinov2, (1, 3, 32, 32)),
}


def made(library: Any, name: str) -> tuple[nn.Module, dict[str, torch.Tensor] | torch.Tensor]:
    """A network and an example of its inputs."""
    torch.manual_seed(0)
    if name in WITH_TEXT:
        tokens = torch.randint(3, TOKENS, (1, STEPS))
        return WITH_TEXT[name](library).eval(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    make, shape = OTHERS[name]
    return make(library).eval(), torch.randn(shape)


def _inputs(net: tailor_ir.SuperNet, config: Mapping[str, Any], batch: int, text: bool) -> tuple[torch.Tensor, ...]:
    """Random inputs; every other sample of a text is padded at its end."""
    shapes = net.input_shapes(config, batch)
    generator = torch.Generator().manual_seed(batch)
    if not text:
        return tuple(torch.randn(shape, generator=generator) for shape in shapes.values())
    tokens = torch.randint(3, TOKENS, shapes["input_ids"], generator=generator)
    mask = torch.ones_like(tokens)
    mask[::2, -3:] = 0
    return tokens, mask


def check(library: Any, name: str, folder: Path) -> tailor_ir.SuperNet:
    """The largest SubNet is the original for one sample and for three; SubNets are the same in their three forms."""
    model, example = made(library, name)
    text = isinstance(example, dict)
    attention = model.config._attn_implementation  # type: ignore[union-attr]
    net = tailor_ir.compile(model, example)
    assert model.config._attn_implementation == attention  # type: ignore[union-attr]
    assert {variable.kind for variable in net.space.variables} >= {"heads", "depth" if text else "expand_ratio"}
    for batch in (1, 3):
        given = _inputs(net, net.max_config, batch, text)
        with torch.no_grad():
            answer = model(**dict(zip(example, given, strict=True))) if isinstance(example, dict) else model(*given)
            own = tuple(value for value in answer.values() if isinstance(value, torch.Tensor))
            net.elastic.eval().activate(net.max_config)
            assert difference(own, net.elastic(*given)) <= ORIGINAL_TOLERANCE, batch
    rng = np.random.default_rng(0)
    for config in (net.space.sample(rng), net.min_config):
        _check_forms(net, config, text, folder)
    return net


def _check_forms(net: tailor_ir.SuperNet, config: Mapping[str, Any], text: bool, folder: Path) -> None:
    built = net.build(config)
    net.elastic.activate(config)
    for batch in (1, 3):
        given = _inputs(net, config, batch, text)
        with torch.no_grad():
            expected = net.elastic(*given)
            assert difference(expected, built(*given)) <= ORIGINAL_TOLERANCE, (config, batch)
        net.export(config, folder / "subnet.onnx", batch=batch)
        session = onnxruntime.InferenceSession(folder / "subnet.onnx", providers=["CPUExecutionProvider"])
        feeds = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), given, strict=True)}
        found = [torch.from_numpy(array) for array in session.run(None, feeds)]
        assert difference(expected, found) <= EXPORT_TOLERANCE, (config, batch)
