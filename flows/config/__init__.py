"""The config of a run, validated."""

from flows.config.device import DeviceProfile, SshSettings
from flows.config.run import AdaptConfig, CommonConfig, FlowConfig, RunConfig, TrackingSettings
from flows.config.until import AdaptStage, RunStage

__all__ = [
    "AdaptConfig",
    "AdaptStage",
    "CommonConfig",
    "DeviceProfile",
    "FlowConfig",
    "RunConfig",
    "RunStage",
    "SshSettings",
    "TrackingSettings",
]
