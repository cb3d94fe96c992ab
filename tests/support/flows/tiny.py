"""A run that goes through every stage in well under a minute: a small network, a small space, one epoch, one rank.

Devices share their cores with other tests, and wait for none: `patience` is 0. How exact times are is judged by benchmarks.
"""

TINY = (
    "model.name=test_resnet",
    "data=digits",
    "data.augment=false",
    "base.epochs=1",
    "base.processes=1",
    "finetune.epochs=1",
    "finetune.processes=1",
    "finetune.random_subnets=1",
    "space.resolution=[24,32]",
    "space.width_mult=[0.5,1]",
    "device=[onnxruntime]",
    "runtime_options.tune=false",
    "profile.measure.time_cap_ms=5",
    "profile.measure.patience=0",
    "profile.subnet.warmup_ms=2",
    "profile.subnet.time_cap_ms=5",
    "profile.subnet.layers_ms=5",
    "profile.subnet.patience=0",
    "profile.subnets_per_operator=2",
    "predict.random_subnets=4",
    "predict.fit_subnets=1",
    "predict.rounds=1",
    "refine.candidates=1",
    "predict.validation_images=64",
    "predict.recalibration_images=64",
    "predict.measure.time_cap_ms=10",
    "predict.measure.warmup_ms=2",
    "predict.measure.patience=0",
    "export.formats=[onnx]",
    "export.measure.time_cap_ms=10",
    "export.measure.warmup_ms=2",
    "export.measure.patience=0",
    "search.budget_count=10",
    "export.replacements=0",
    "search.generations=5",
)
FEW = "search.budget_count=4"
"""For runs on further devices: each budget's SubNet is measured and exported, which takes longest."""
SHORT_NIGHT = (
    "nightly.operators=2",
    "nightly.rounds=3",
    "nightly.slower=1",
    "nightly.smaller_front=1",
    "nightly.false_alarms=1e-300",
)
"""Latencies of two nights may differ by anything, too, also by more than twice."""
