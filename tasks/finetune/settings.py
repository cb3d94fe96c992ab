"""How to train: shared by the base network and the SuperNet."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainSettings(BaseModel):
    """The training loop, whatever is trained.

    BatchNorm uses the statistics of each micro-batch. A global batch is always split into the same
    micro-batches, so the loss curve depends on `batch_size` and `micro_batch` but not on `processes`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    epochs: int = Field(default=8, ge=1)
    batch_size: int = Field(default=64, ge=1)
    """Images per optimiser step, over all processes."""
    micro_batch: int = Field(default=32, ge=2)
    """Images per forward pass; BatchNorm statistics are those of one micro-batch."""
    optimiser: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak, after warm-up; then cosine to zero."""
    warmup_epochs: float = Field(default=1.0, ge=0)
    weight_decay: float = Field(default=0.05, ge=0)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient; none = not clipped."""
    precision: Literal["float32", "float64"] = "float32"
    """float64 is for comparing runs: rounding noise of float32 grows exponentially over the steps."""
    seed: int = Field(default=0, ge=0)
    processes: int = Field(default=2, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    recalibration_images: int = Field(default=512, ge=2)
    """Training images from which BatchNorm statistics are taken after training."""
    checkpoint_every_s: float = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> "TrainSettings":
        if self.batch_size % (self.micro_batch * self.processes):
            raise ValueError(
                f"batch_size={self.batch_size} does not split evenly over {self.processes} processes "
                f"in micro-batches of {self.micro_batch}; "
                f"allowed: multiples of {self.micro_batch * self.processes}"
            )
        return self


class Settings(TrainSettings):
    """Fine-tuning of a SuperNet: which SubNets each step trains, and what teaches them."""

    strategy: Literal["sandwich", "compound", "random"] = "sandwich"
    """sandwich: largest, smallest and random SubNets (BigNAS, ECCV 2020); compound: the random ones couple
    depth and width or expansion per stage (CompOFA, ICLR 2021); random: only those, without a teacher."""
    random_subnets: int = Field(default=1, ge=0)
    distillation: float = Field(default=1.0, ge=0, le=1)
    """Weight of the largest SubNet's soft labels in the loss of the others; the rest is the labels'."""

    @model_validator(mode="after")
    def _check_strategy(self) -> "Settings":
        if self.strategy == "random" and self.random_subnets == 0:
            raise ValueError("strategy=random needs random_subnets of at least 1")
        return self
