"""Settings for timing one model."""

from typing import Self

from pydantic import Field, model_validator

from profiling_agents.messages.base import Cache, Message


class MeasureSettings(Message):
    """How one model is timed; the defaults cost about 40 ms for a small operator.

    Runs are repeated until one sample lasts `sample_us`. Samples come in blocks with pauses between them. Sampling
    stops when the 95 % confidence interval of p50 is within ± `confidence` of p50, or at `time_cap_ms` (pauses
    included; `min_samples` come first). With one thread, an interrupted sample counts with its CPU time. With several
    threads it is left out, unless fewer than `min_samples` are left. With one thread, samples on a core that other
    processes slow down are left out, too. The agent waits for a calm core up to `patience` times as long as the cap;
    after that, slow samples count, and the time is flagged noisy. A model whose `spread` = (p90 - p10) / p50 is above
    `spread_limit` is measured once more, then flagged noisy.

    `layers_ms` above 0 (warm caches only): the runtime's layers are timed inside the model for this long afterwards.
    `cache` "cold": the processor's caches are emptied before each sample, which is then a single run.
    `energy_ms` above 0 (warm caches only): the model runs for this long while the device's sensors count the energy.
    """

    warmup_ms: float = Field(default=4.0, ge=0.0, le=10_000.0)
    warmup_runs: int = Field(default=2, ge=1, le=1_000)
    sample_us: float = Field(default=250.0, ge=10.0, le=1_000_000.0)
    samples_per_block: int = Field(default=8, ge=1, le=1_000)
    min_blocks: int = Field(default=3, ge=1, le=1_000)
    min_samples: int = Field(default=5, ge=3, le=10_000)
    block_pause_ms: float = Field(default=1.0, ge=0.0, le=1_000.0)
    time_cap_ms: float = Field(default=30.0, ge=1.0, le=600_000.0)
    patience: float = Field(default=10.0, ge=0.0, le=1_000.0)
    confidence: float = Field(default=0.02, gt=0.0, le=1.0)
    spread_limit: float = Field(default=0.25, gt=0.0)
    cache: Cache = "warm"
    layers_ms: float = Field(default=0.0, ge=0.0, le=600_000.0)
    energy_ms: float = Field(default=0.0, ge=0.0, le=600_000.0)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _energy_and_layers_are_those_of_warm_runs(self) -> Self:
        if self.cache == "cold" and self.layers_ms:
            raise ValueError(
                "layers_ms with cache 'cold': layers are timed with warm ones; allowed: 0, or cache 'warm'"
            )
        if self.cache == "cold" and self.energy_ms:
            raise ValueError("energy_ms with cache 'cold' would count the emptying too; allowed: 0, or cache 'warm'")
        return self
