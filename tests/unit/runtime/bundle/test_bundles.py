"""Bundles are read as they were written; what is corrupt, foreign, newer, incomplete or not signed is one clear line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adaptive_runtime
import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import (
    BUNDLE_FILE,
    SIGNATURE_FILE,
    BundleManifest,
    CalibrationSample,
    OpenBundle,
    half,
    read_key,
    signature,
    verify,
)
from tests.support.ir.networks import small_net
from tests.support.runtime.bundled import write_plain_bundle


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = tailor_ir.compile(small_net(blocks=2), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    write_plain_bundle(net, [net.max_config, net.min_config], folder)
    return folder


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    """A bundle of one's own, to damage."""
    return Path(shutil.copytree(plain, tmp_path / "bundle"))


def test_a_manifest_is_the_same_after_it_was_a_file(plain: Path) -> None:
    found = OpenBundle.open(plain).manifest
    assert BundleManifest.from_json(found.to_json()) == found
    assert found.own_format == "onnx"
    assert set(found.files) == {file.name for file in plain.iterdir()} - {BUNDLE_FILE}
    OpenBundle.open(plain).verify_all()


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / BUNDLE_FILE).read_text())
        change(content)
        (folder / BUNDLE_FILE).write_text(json.dumps(content))

    return damage


def first_onnx(folder: Path) -> Path:
    return min(folder.glob("*.onnx"))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda folder: (folder / BUNDLE_FILE).unlink(), r"bundle\.json: cannot be read \(No such file"),
    "no JSON": (
        lambda folder: (folder / BUNDLE_FILE).write_text("{"),
        r"bundle\.json: is no JSON .*; export the bundle",
    ),
    "no bytes of a text": (
        lambda folder: (folder / BUNDLE_FILE).write_bytes(b"\xff\xfe\x00"),
        r"bundle\.json: is no JSON",
    ),
    "a list": (lambda folder: (folder / BUNDLE_FILE).write_text("[]"), r"bundle\.json: is no manifest of a bundle"),
    "newer": (
        edited(lambda content: content.update(version=3)),
        r"has version 3, of a later autotailor; allowed: 2; upd",
    ),
    "older": (edited(lambda content: content.update(version=1)), r"has version 1; allowed: 2; export the bundle again"),
    "foreign": (
        lambda folder: (folder / BUNDLE_FILE).write_text('{"name": "x"}'),
        r"has no version; allowed: 2; export",
    ),
    "unknown field": (edited(lambda content: content.update(colour="red")), r"colour: Extra inputs are not permitted"),
    "a path": (edited(lambda content: content.update(calibration="../c.npz")), r"calibration: String should match pat"),
    "no such file": (edited(lambda content: content.update(calibration="c.npz")), r"'c\.npz' is not among the files"),
    "twice": (edited(lambda content: content["subnets"].append(content["subnets"][0])), r"a SubNet is there twice"),
    "incomplete": (lambda folder: first_onnx(folder).unlink(), r"\.onnx: cannot be read \(No such file.*; export the"),
    "cut off": (lambda folder: first_onnx(folder).write_bytes(b"x"), r"\.onnx: has 1 bytes; allowed: \d+; export the"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_one_clear_line(folder: Path, case: str) -> None:
    damage, line = DAMAGE[case]
    damage(folder)
    with pytest.raises(AdaptiveError, match=line) as found:
        adaptive_runtime.load(folder)
    assert "\n" not in str(found.value)


def test_a_file_that_has_changed_is_refused_when_it_is_used_and_once_more_when_it_changes_again(folder: Path) -> None:
    bundle, file = OpenBundle.open(folder), first_onnx(folder)
    content = file.read_bytes()
    assert bundle.verified(file.name) == [file]
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(
        AdaptiveError, match=rf"{file.name}: is not the file that bundle\.json names; export the bundle"
    ):
        bundle.verified(file.name)
    with pytest.raises(AdaptiveError, match=rf"{file.name}: is not the file"):
        bundle.verify_all()
    file.write_bytes(content)
    bundle.verify_all()


def test_a_signed_bundle_is_read_with_its_key_alone(folder: Path, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("0123456789abcdef\n")
    other.write_text("fedcba9876543210")
    with pytest.raises(AdaptiveError, match=r"bundle\.sig: cannot be read, but a key was given; export with"):
        OpenBundle.open(folder, key)
    content = (folder / BUNDLE_FILE).read_bytes()
    (folder / SIGNATURE_FILE).write_text(signature(content, read_key(key)))
    assert OpenBundle.open(folder, key).manifest == OpenBundle.open(folder).manifest
    with pytest.raises(AdaptiveError, match=r"bundle\.sig: is not the signature of the manifest by this key"):
        OpenBundle.open(folder, other)
    (folder / BUNDLE_FILE).write_bytes(content + b"\n")
    with pytest.raises(AdaptiveError, match=r"is not the signature of the manifest by this key"):
        adaptive_runtime.load(folder, key_file=key)
    other.write_text("short")
    with pytest.raises(AdaptiveError, match=r"key file '.*other': 5 bytes; allowed: 16 or more; make one: openssl"):
        OpenBundle.open(folder, other)
    with pytest.raises(AdaptiveError, match=r"key file '.*none': cannot be read"):
        OpenBundle.open(folder, tmp_path / "none")


@given(st.binary(max_size=50), st.binary(min_size=16, max_size=40), st.integers(0, 255), st.integers(1, 255))
def test_a_signature_is_of_one_content_and_one_key(content: bytes, key: bytes, at: int, flip: int) -> None:
    stated = signature(content, key)
    changed = bytearray(key)
    changed[at % len(key)] ^= flip
    assert signature(content, bytes(changed)) != stated
    assert signature(content + b"x", key) != stated
    assert signature(content, key) == stated


def test_a_signature_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / SIGNATURE_FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(AdaptiveError, match=r"bundle\.sig: cannot be read"):
        verify(b"", tmp_path / SIGNATURE_FILE, b"0" * 16)


@given(st.integers(1, 3), st.integers(1, 4), st.lists(st.sampled_from(["a.1", "last"]), unique=True))
def test_a_calibration_sample_is_the_same_after_it_was_a_file(samples: int, size: int, exits: list[str]) -> None:
    rng = np.random.default_rng(0)
    x = half(rng.standard_normal((samples, 3, size, size)).astype(np.float32))
    answers = {("0123", exit): rng.standard_normal((samples, 5)).astype(np.float32) for exit in (None, *exits)}
    found = CalibrationSample.from_bytes(CalibrationSample({x.shape[1:]: x}, answers).to_bytes())
    assert found.inputs.keys() == {x.shape[1:]}
    assert np.array_equal(found.inputs[x.shape[1:]], x)
    assert found.answers.keys() == answers.keys()
    assert all(np.array_equal(found.answers[key], answers[key]) for key in answers)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + b"\0" * 10])
def test_what_is_no_calibration_sample_is_one_line(content: bytes) -> None:
    with pytest.raises(AdaptiveError, match=r"calibration\.npz: is no calibration sample"):
        CalibrationSample.from_bytes(content)
