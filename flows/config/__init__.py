"""The config of a run, validated."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from flows.config.bundles import DeployConfig
    from flows.config.devices import DeviceProfile, SshSettings, leveled, sharing
    from flows.config.run import CommonConfig, FlowConfig, RetargetConfig, RunConfig, TrackingSettings
    from flows.config.settings import EvaluateSettings, RetargetStage, RunStage
else:
    __getattr__ = public_names(__name__, __file__)
