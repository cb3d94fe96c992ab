"""SubNets of a bundle over several devices of a run: `export.placed`."""

from collections.abc import Mapping

from flows.config.device import DeviceProfile
from flows.config.together import FIRST, sharing
from tasks.export import Settings as ExportSettings
from tasks.search.placement_settings import Settings as PartitionSettings

WHERE = "export.placed=true"


def check_placed(devices: Mapping[str, DeviceProfile], export: ExportSettings, partition: PartitionSettings) -> None:
    """ValueError in one line: the first device of a partition cannot have a bundle with SubNets over the others."""
    if not export.placed:
        return
    if not partition.asked:
        raise ValueError(f"{WHERE} without partition.devices; allowed: partition.devices=[HOME,DEVICE…]")
    home, others = partition.devices[0], partition.devices[1:]
    if "home" in others:
        raise ValueError("partition.devices: a device besides the first is called 'home'; allowed: any other name")
    if devices[home].bundle_format not in FIRST or home in sharing(export):
        got = f"backend={devices[home].backend} with precision={devices[home].precision}"
        raise ValueError(f"{WHERE}: {home} has {got}; allowed: a bundle of onnxruntime or ncnn on the CPU in fp32")
    for name in partition.devices:
        if devices[name].batch != 1:
            raise ValueError(
                f"{WHERE}: {name} has batch={devices[name].batch}; allowed: 1, since samples go one by one"
            )
        if devices[name].precision == "int8":
            raise ValueError(f"{WHERE}: {name} is in int8, which is another accuracy; allowed: fp32, fp16, bf16")
    partition.require_plans()


def leveled(export: ExportSettings, partition: PartitionSettings) -> tuple[str, ...]:
    """The devices whose SubNets, exits, formats and placements are one table, in the stage "front"."""
    placed = partition.devices[:1] if export.placed else ()
    return tuple(dict.fromkeys((*export.together, *placed)))
