"""Models that a service can serve: a bundle, or a SubNet that is split over several devices."""

from adaptive_runtime.server.models.served import DevicesSource, DevicesTold, DeviceTold, ServedModel

__all__ = ["DeviceTold", "DevicesSource", "DevicesTold", "ServedModel"]
