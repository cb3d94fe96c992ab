"""The config of a run, validated."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from flows.config.deploy import DeployConfig
    from flows.config.device import DeviceProfile, SshSettings
    from flows.config.evaluate import EvaluateSettings
    from flows.config.placed import leveled
    from flows.config.run import AdaptConfig, CommonConfig, FlowConfig, RunConfig, TrackingSettings
    from flows.config.together import sharing
    from flows.config.until import AdaptStage, RunStage
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "AdaptConfig",
    "AdaptStage",
    "CommonConfig",
    "DeployConfig",
    "DeviceProfile",
    "EvaluateSettings",
    "FlowConfig",
    "RunConfig",
    "RunStage",
    "SshSettings",
    "TrackingSettings",
    "leveled",
    "sharing",
]
