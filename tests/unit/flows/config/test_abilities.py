"""Options that a learning problem cannot do yet are refused before anything is worked."""

import pytest

from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.base.errors import UserError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["export.bundle=true", "export.adaptable=true"],
            "export.adaptable with data.kind=glyph_scenes: segmentation cannot do it yet: .*: false",
        ),
        (["finetune.mixing.mixup_alpha=0.2"], "finetune.mixing with data.kind=glyph_scenes: .*mixed images"),
        (["space.exits=auto"], "space.exits with data.kind=glyph_scenes: .*; allowed: a space without exits"),
        (["stream.in_report=true"], "stream.in_report with data.kind=glyph_scenes: .*; allowed: false"),
    ],
)
def test_options_that_segmentation_cannot_do_yet_are_one_clear_line(overrides: list[str], message: str) -> None:
    words = ["data=glyph_scenes", *overrides]
    with pytest.raises(UserError, match=message):
        validate(RunConfig, compose_config("config", words))
    validate(RunConfig, compose_config("config", overrides))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["stream.in_report=true"],
            "stream.in_report with data.kind=texts: classification of texts cannot do it yet: ",
        ),
        (["export.bundle=true", "export.adaptable=true"], "export.adaptable with data.kind=texts: .*to images alone"),
        (
            ["device=[onnxruntime,torch]", "partition.devices=[onnxruntime,torch]", "export.offload=true"],
            "export.offload with data.kind=texts: .*the coordinator sends images alone to other devices; allowed: false",
        ),
        (["base.mixing.cutmix_alpha=1"], "base.mixing with data.kind=texts: .*numbers of words cannot be mixed"),
        (["model.backbone=encoder"], "model.backbone with data.kind=texts: .*of feature maps of images; allowed: null"),
        (["space.exits=auto"], "space.exits with data.kind=texts: .*feature maps of images"),
        (
            ["device=[ncnn]"],
            "device with backend=ncnn with data.kind=texts: .*: files of ncnn are written without its layer for looking "
            "words up; allowed: onnxruntime, openvino, torch",
        ),
        (
            ["export.formats=[onnx,ncnn]"],
            "export.formats with ncnn with data.kind=texts: .*layer for looking words up; allowed: onnx, onnx_int8, torch",
        ),
        (
            ["export.formats=[ncnn_fp16]"],
            "export.formats with ncnn_fp16 with data.kind=texts: .*; allowed: onnx, onnx_int8, torch",
        ),
    ],
)
def test_options_that_texts_cannot_do_yet_are_one_clear_line(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(RunConfig, compose_config("config", ["+preset=texts", *overrides]))
    validate(RunConfig, compose_config("config", ["+preset=texts"]))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["stream.in_report=true"],
            "stream.in_report with data.kind=image_and_motion: classification of several inputs cannot",
        ),
        (["export.adaptable=true"], "export.adaptable with data.kind=image_and_motion: .*networks of one image alone"),
        (["export.blocks=true"], "export.blocks with data.kind=image_and_motion: .*a search on a device"),
        (["export.planned_memory=true"], "export.planned_memory with data.kind=image_and_motion: .*; allowed: false"),
        (
            ["partition.devices=[ncnn,onnxruntime]", "export.offload=true"],
            "export.offload with data.kind=image_and_motion: .*coordinator sends one input to other devices; allowed: false",
        ),
        (
            ["partition.devices=[ncnn,onnxruntime]"],
            r"partition.devices with data.kind=image_and_motion: .*; allowed: \[\], and",
        ),
        (["finetune.mixing.mixup_alpha=0.2"], "finetune.mixing with data.kind=image_and_motion: .*are not mixed"),
        (["space.exits=auto"], "space.exits with data.kind=image_and_motion: .*for networks of one image"),
        (
            ["baselines.siblings=[resnet18]"],
            "baselines.siblings with data.kind=image_and_motion: .*networks of one image",
        ),
    ],
)
def test_options_that_several_inputs_cannot_do_yet_are_one_clear_line(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(RunConfig, compose_config("config", ["+preset=image_and_motion", *overrides]))
    validate(RunConfig, compose_config("config", ["+preset=image_and_motion"]))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["device=[ncnn]", "export.formats=[onnx]"],
            "device with backend=ncnn with data.kind=table: .*of several inputs.* looking words up",
        ),
        (
            ["device=[onnxruntime]", "export.formats=[onnx,ncnn]"],
            "export.formats with ncnn with data.kind=table: .*; allowed: onnx, onnx_int8",
        ),
    ],
)
def test_a_text_among_several_inputs_is_refused_where_texts_alone_are(words: list[str], message: str) -> None:
    own = ["data=table", "data.path=garden", *words]
    with pytest.raises(UserError, match=message):
        validate(RunConfig, compose_config("config", [*own, "data.inputs={photo:image,note:text}"]))
    validate(RunConfig, compose_config("config", [*own, "data.inputs={photo:image,noise:sound}"]))
    other = ["data=table", "data.path=garden", "device=[onnxruntime]", "export.formats=[onnx]"]
    validate(RunConfig, compose_config("config", [*other, "data.inputs={photo:image,note:text}"]))


def test_several_targets_of_one_image_can_do_what_images_can_and_is_not_by_one_class() -> None:
    own = ["data=table", "data.path=garden", "data.inputs={photo:image}", "data.targets=[plant,state]"]
    placed = [
        "device=[onnxruntime,torch]",
        "partition.devices=[onnxruntime,torch]",
        "export.bundle=true",
        "export.offload=true",
    ]
    config = validate(RunConfig, compose_config("config", [*own, *placed, "export.formats=[onnx,ncnn]"]))
    assert (config.data.sample, config.model.kind) == ("image", "timm")
    with pytest.raises(UserError, match=r"space.exits with data.kind=table: several_classes cannot do it yet: samples"):
        validate(RunConfig, compose_config("config", [*own, "space.exits=auto"]))


def test_what_goes_by_right_answers_is_refused_where_the_score_is_another() -> None:
    words = ["data.metric=macro_f1", "space.exits=auto"]
    wanted = "space.exits with data.kind=noisy_digits: classification by macro F1 cannot do it yet: .* right answers"
    with pytest.raises(UserError, match=wanted):
        validate(RunConfig, compose_config("config", words))
    assert validate(RunConfig, compose_config("config", words[:1])).data.metric == "macro_f1"
