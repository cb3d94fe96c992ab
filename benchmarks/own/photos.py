"""An .onnx file of torch's default export, and a folder of pictures without labels.

python -m benchmarks.own.photos
"""

from pathlib import Path

import timm
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import autotailor
from benchmarks.own.shown import fit, show
from tasks.data import DataSettings, load_splits
from tasks.data.dataset import scale_of_images

FOLDER = Path("outputs/photos")


def prepare() -> None:
    """What the user has: a trained network in a file, and pictures."""
    settings = DataSettings(kind="noisy_digits", images=3000)
    digits = load_splits(settings)["train"]
    images, labels = next(digits.batches(len(digits), seed=0, augment=False))
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    model = fit(timm.create_model("resnet18", num_classes=10), loader, functional.cross_entropy, epochs=4)
    (FOLDER / "pictures").mkdir(parents=True, exist_ok=True)
    torch.onnx.export(model.eval(), (images[:1],), FOLDER / "net.onnx", dynamo=True, external_data=False)
    mean, deviation = scale_of_images(settings, 3)
    for number, image in enumerate((images[:600] * deviation + mean).clamp(0, 1)):
        pixels = (image * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(FOLDER / "pictures" / f"{number}.png")


def main() -> None:
    """Prepare, and tailor."""
    if not (FOLDER / "net.onnx").exists():
        prepare()
    show(autotailor.tailor(FOLDER / "net.onnx", FOLDER / "pictures", minutes=5, output_dir=FOLDER))


if __name__ == "__main__":
    main()
