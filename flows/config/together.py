"""Devices of a run that are one machine in several runtimes or precisions: `export.together`."""

from collections.abc import Mapping

from flows.config.device import DeviceProfile
from tasks.export import Settings as ExportSettings
from tasks.export.bundles import required_files

FIRST = ("onnx", "ncnn")
"""Formats of a device whose bundle has further ones."""


def check_together(devices: Mapping[str, DeviceProfile], export: ExportSettings) -> None:
    """ValueError in one line: devices that cannot share a bundle."""
    named: set[str] = set()
    for first, others in export.together.items():
        where = f"export.together.{first}"
        for name in (first, *others):
            if name not in devices:
                raise ValueError(f"{where}: '{name}' is no device; allowed: {', '.join(devices)}")
            if name in named:
                raise ValueError(f"{where}: '{name}' is there twice; allowed: each device once")
            named.add(name)
        profile, profiles = devices[first], {name: devices[name] for name in others}
        if profile.bundle_format not in FIRST:
            got = f"backend={profile.backend} with precision={profile.precision}"
            raise ValueError(f"{where}: {got}; allowed: onnxruntime or ncnn on the CPU in fp32")
        _check_formats(where, {first: profile, **profiles}, export)


def _check_formats(where: str, profiles: Mapping[str, DeviceProfile], export: ExportSettings) -> None:
    owners: dict[str, str] = {}
    for name, profile in profiles.items():
        form = profile.bundle_format
        if form is None:
            got = f"{name} has backend={profile.backend} with precision={profile.precision}"
            raise ValueError(
                f"{where}: {got}, which no format of a bundle is for; allowed: onnxruntime and ncnn on the CPU"
            )
        if form in owners:
            raise ValueError(f"{where}: {owners[form]} and {name} are both in {form}; allowed: each format once")
        if missing := [one for one in required_files([form]) if one not in export.formats]:
            wanted = ",".join((*export.formats, missing[0]))
            raise ValueError(f"{where}: {name} needs files of {missing[0]}; allowed: export.formats=[{wanted}]")
        owners[form] = name
    batches = {name: profile.batch for name, profile in profiles.items()}
    if len(set(batches.values())) > 1:
        got = ", ".join(f"{name} {batch}" for name, batch in batches.items())
        raise ValueError(f"{where}: batches differ ({got}); allowed: one batch for all")


def sharing(export: ExportSettings) -> frozenset[str]:
    """The devices that have no bundle of their own: another one's has their formats."""
    return frozenset(name for others in export.together.values() for name in others)
