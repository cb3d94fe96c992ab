"""A run that goes through every stage in well under a minute: a small network, a small space, one epoch."""

TINY = (
    "model.name=test_resnet",
    "data.augment=false",
    "base.epochs=1",
    "finetune.epochs=1",
    "finetune.random_subnets=1",
    "space.resolution=[24,32]",
    "space.width_mult=[0.5,1]",
    "device=[onnxruntime]",
    "profile.measure.time_cap_ms=5",
    "predict.random_subnets=4",
    "predict.fit_subnets=1",
    "predict.validation_images=64",
    "predict.recalibration_images=64",
    "predict.measure.time_cap_ms=10",
    "export.measure.time_cap_ms=10",
    "search.generations=5",
)
