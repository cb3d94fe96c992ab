"""CIFAR and ImageNet through torchvision: small files in the real formats, and what is said when they are wrong."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, CIFAR100

from tasks.base.errors import UserError
from tasks.data import DataSettings, EpochPart, load_splits
from tests.support.data.coloured_images import COLOURS, encoded

CLASSES = {"cifar10": 10, "cifar100": 100}
LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
WORDNET = {"blue": "n001", "green": "n002", "red": "n003"}


def settings(name: str, path: Path, **options: object) -> DataSettings:
    given = {"kind": "torchvision", "name": name, "path": path, "mean": (0.0,), "deviation": (1.0,), **options}
    return DataSettings.model_validate({"resolution": 32, **given})


def shades(labels: np.ndarray, classes: int) -> np.ndarray:
    """(N, 3072) uint8, each image one shade of grey that tells its class."""
    return np.repeat((labels * (250 // classes)).astype(np.uint8)[:, None], 3 * 32 * 32, axis=1)


def write_cifar(root: Path, name: str, monkeypatch: pytest.MonkeyPatch, per_class: int = 12) -> Path:
    """Pickled batches as published, but fewer images; torchvision is told their checksums. Returns their folder."""
    dataset = {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
    folder = root / dataset.base_folder
    folder.mkdir(parents=True)
    count = CLASSES[name]
    for listed in ("train_list", "test_list"):
        written = []
        for file, _ in getattr(dataset, listed):
            labels = np.arange(per_class * count) % count
            content = pickle.dumps({"data": shades(labels, count), LABELS[name]: labels.tolist()}, protocol=2)
            (folder / file).write_bytes(content)
            written.append([file, hashlib.md5(content).hexdigest()])
        monkeypatch.setattr(dataset, listed, written)
    content = pickle.dumps({dataset.meta["key"]: [f"class {label}" for label in range(count)]}, protocol=2)
    (folder / dataset.meta["filename"]).write_bytes(content)
    monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": hashlib.md5(content).hexdigest()})
    return folder


def write_imagenet(root: Path, counts: dict[str, int]) -> None:
    """meta.bin as torchvision writes it, and a folder of JPEGs for each class."""
    names = {wordnet: (colour, f"very {colour}") for colour, wordnet in WORDNET.items()}
    torch.save((names, []), root / "meta.bin")
    for split, count in counts.items():
        for colour, wordnet in WORDNET.items():
            (root / split / wordnet).mkdir(parents=True)
            for index in range(count):
                file = root / split / wordnet / f"{wordnet}_{index}.JPEG"
                file.write_bytes(encoded(COLOURS[colour], file_format="JPEG"))


@pytest.mark.parametrize("name", CLASSES)
def test_cifar_is_read_and_its_held_out_images_are_the_test(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, name, monkeypatch)
    count = CLASSES[name]
    files = {"cifar10": 5, "cifar100": 1}[name]
    splits = load_splits(settings(name, tmp_path, resolution=40))
    assert len(splits["test"]) == 12 * count
    assert len(splits["train"]) + len(splits["validation"]) == 12 * count * files
    assert len(splits["validation"]) == 2 * count * files
    assert splits["train"].class_names == tuple(f"class {label}" for label in range(count))
    for split in splits.values():
        x, y = next(split.batches(50, seed=0, augment=True))
        assert x.shape == (50, 3, 40, 40)
        assert torch.equal((x[:, 0, 20, 20] * 255).round().long(), y * (250 // count))


def test_imagenet_is_read_and_its_held_out_images_are_the_test(tmp_path: Path) -> None:
    write_imagenet(tmp_path, {"train": 12, "val": 4})
    splits = load_splits(settings("imagenet", tmp_path, resolution=16))
    assert {name: len(split) for name, split in splits.items()} == {"train": 30, "validation": 6, "test": 12}
    assert splits["train"].class_names == ("blue, very blue", "green, very green", "red, very red")
    for split in splits.values():
        for x, y in split.batches(6):
            assert torch.equal(x.mean((2, 3)).argmax(1), 2 - y)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python"), ("imagenet", "meta.bin, train, val")],
)
def test_absent_files_are_one_clear_line(name: str, missing: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"data folder '.*': {name} needs {missing} in it; .*nothing is downloaded"):
        load_splits(settings(name, tmp_path))
    assert not list(tmp_path.iterdir())


def test_cifar_with_another_checksum_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cifar(tmp_path, "cifar10", monkeypatch)
    marker = tmp_path / "unpickled"
    (folder / "test_batch").write_bytes(b"cpathlib\nPath.touch\n(cpathlib\nPath\n(V" + bytes(marker) + b"\ntRtR.")
    with pytest.raises(UserError, match=r"the files of cifar10 are incomplete or changed \(.*; copy them anew"):
        load_splits(settings("cifar10", tmp_path))
    assert not marker.exists()


def test_imagenet_with_other_classes_or_a_broken_list_is_one_clear_line(tmp_path: Path) -> None:
    write_imagenet(tmp_path, {"train": 6, "val": 6})
    (tmp_path / "val" / "n003").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="train and val have different class folders"):
        load_splits(settings("imagenet", tmp_path))
    (tmp_path / "meta.bin").write_bytes(b"not a list of classes")
    with pytest.raises(UserError, match="the files of imagenet are incomplete or changed"):
        load_splits(settings("imagenet", tmp_path))


def test_ranks_together_give_the_global_batches_of_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path, "cifar10", monkeypatch)
    train = load_splits(settings("cifar10", tmp_path))["train"]
    for alone, *ranks in zip(
        train.batches(100, seed=1),
        *(train.batches(100, seed=1, part=EpochPart(rank=rank, world=2)) for rank in range(2)),
        strict=True,
    ):
        assert torch.equal(alone[0], torch.cat([x for x, _ in ranks]))
        assert torch.equal(alone[1], torch.cat([y for _, y in ranks]))
