"""The state of the device: cores, frequencies, temperatures, throttling, power source and sensors.

The functions read Linux' /proc, /sys and /etc below `root`. A value that cannot be read is None, never guessed and never 0.
"""

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from profiling_agents.messages import MIB, CoreState, DeviceState, PowerSensor, PowerSource, Temperature

SYSTEM = Path("/")
CPUS = "sys/devices/system/cpu"
POWERCAP = "sys/class/powercap"
HWMON = "sys/class/hwmon"
RAPL = "intel-rapl:*"  # AMD's domains have this name, too
RAPL_DOMAINS = ("package", "dram")
"""`core` and `uncore` are parts of a package; `psys` includes packages."""

INA3221 = "ina3221"
INA3221_CHANNELS = (1, 2, 3)
WHOLE_BOARD = ("VDD_IN", "POM_5V_IN")
"""Jetson's rails that feed all others."""

DEVICE_TREE_MODEL = "proc/device-tree/model"
ARM_IMPLEMENTERS = {
    "0x41": "Arm",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x53": "Samsung",
    "0x61": "Apple",
    "0xc0": "Ampere",
}
ARM_PARTS = {
    ("0x41", part): name
    for part, name in {
        "0xb76": "Arm1176",
        "0xc07": "Cortex-A7",
        "0xc09": "Cortex-A9",
        "0xc0f": "Cortex-A15",
        "0xd03": "Cortex-A53",
        "0xd04": "Cortex-A35",
        "0xd05": "Cortex-A55",
        "0xd07": "Cortex-A57",
        "0xd08": "Cortex-A72",
        "0xd09": "Cortex-A73",
        "0xd0a": "Cortex-A75",
        "0xd0b": "Cortex-A76",
        "0xd0c": "Neoverse-N1",
        "0xd0d": "Cortex-A77",
        "0xd40": "Neoverse-V1",
        "0xd41": "Cortex-A78",
        "0xd42": "Cortex-A78AE",
        "0xd44": "Cortex-X1",
        "0xd46": "Cortex-A510",
        "0xd47": "Cortex-A710",
        "0xd48": "Cortex-X2",
        "0xd49": "Neoverse-N2",
        "0xd4d": "Cortex-A715",
        "0xd4e": "Cortex-X3",
        "0xd4f": "Neoverse-V2",
        "0xd80": "Cortex-A520",
        "0xd81": "Cortex-A720",
        "0xd82": "Cortex-X4",
    }.items()
}
"""Names of Arm's own cores, by implementer and part, as in the MIDR register; other cores are named by these numbers."""
ARM_FEATURES = ("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme", "sme2")
"""Processor features on which the speed of a runtime depends, by the kernel's names."""

PI_THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"
PI_NOW = 0b1111
"""Under-voltage, capped, throttled, soft temperature limit; the higher bits are about the past."""


def read_text(path: Path) -> str | None:
    """Content of a small file without surrounding blanks, or None."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def read_number(path: Path) -> int | None:
    """The whole number in a file, or None."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def cores_root(root: Path) -> Path:
    """The folder of the cores' files: `root` if it has them, else this system's root."""
    return root if (root / CPUS).is_dir() else SYSTEM


def cpu_model(root: Path = SYSTEM) -> str:
    """The processor's identification: its own name, or, on Arm, the board, its kinds of cores and their features.

    Arm's kernels give no exact name: "model name" and "Hardware" name a family or an older chip. Measurements are shared
    between devices with the same text.
    """
    lines = [line.partition(":") for line in (read_text(root / "proc/cpuinfo") or "").splitlines()]
    rows = [(name.strip(), value.strip()) for name, _, value in lines if value.strip()]
    cores = _arm_cores(rows)
    if cores:
        board = board_model(root) or next((value for name, value in rows if name == "Model"), None)
        features = {word for name, value in rows if name == "Features" for word in value.split()}
        able = " ".join(word for word in ARM_FEATURES if word in features)
        return ", ".join(filter(None, (board, cores, able)))
    first = next((value for name, value in rows if name in ("model name", "Hardware", "Model")), None)
    return first or board_model(root) or platform.processor() or platform.machine()


def board_model(root: Path = SYSTEM) -> str | None:
    """The board's name from its firmware, if it has a device tree."""
    text = (read_text(root / DEVICE_TREE_MODEL) or "").strip("\0 \n")
    return text or None


def _arm_cores(rows: Sequence[tuple[str, str]]) -> str:
    """The kinds of Arm's cores, each once; "" on another architecture. rows: names and values of /proc/cpuinfo, in order."""
    kinds, implementer = set[str](), ""
    for name, value in rows:
        if name == "CPU implementer":
            implementer = value.lower()
        elif name == "CPU part" and implementer:
            part = value.lower()
            kinds.add(
                ARM_PARTS.get((implementer, part), f"core {part} of {ARM_IMPLEMENTERS.get(implementer, implementer)}")
            )
    return " + ".join(sorted(kinds))


def governor(core: int, root: Path = SYSTEM) -> str | None:
    """Frequency governor of one core."""
    return read_text(root / CPUS / f"cpu{core}/cpufreq/scaling_governor")


def frequency_mhz(core: int, which: str = "cur", root: Path = SYSTEM) -> float | None:
    """Frequency of one core [MHz]: `cur`, or the currently allowed `min` or `max`."""
    value_khz = read_number(root / CPUS / f"cpu{core}/cpufreq/scaling_{which}_freq")
    return None if value_khz is None else value_khz / 1e3


def frequency_state(core: int, root: Path = SYSTEM) -> str:
    """'pinned' when the allowed range is one value, else 'as shipped'; 'unknown' if unreadable."""
    limits = [frequency_mhz(core, end, root) for end in ("min", "max")]
    if None in limits:
        return "unknown"
    return "pinned" if limits[0] == limits[1] else "as shipped"


def core_kind(core: int, root: Path = SYSTEM) -> tuple[int | None, int | None]:
    """(capacity, highest frequency [kHz]); distinguishes big from little cores."""
    folder = root / CPUS / f"cpu{core}"
    return read_number(folder / "cpu_capacity"), read_number(folder / "cpufreq/cpuinfo_max_freq")


def throttle_events(cores: Sequence[int], root: Path = SYSTEM) -> int | None:
    """How often these cores, or their packages, were slowed down for their temperature since the start."""
    folders = [root / CPUS / f"cpu{core}/thermal_throttle" for core in cores]
    counts = [read_number(folder / f"{part}_throttle_count") for folder in folders for part in ("core", "package")]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def state(cores: Sequence[int], root: Path = SYSTEM) -> DeviceState:
    """All values that change while the device is up. cores: the cores that this process may use."""
    return DeviceState(
        cores=tuple(_core(core, root) for core in cores),
        memory_available_mib=psutil.virtual_memory().available // MIB,
        temperatures=tuple(temperatures(root)),
        throttle_events=throttle_events(cores, root),
        throttled=throttled(root),
        power_source=power_source(root),
    )


def operating_system(root: Path = SYSTEM) -> str | None:
    """Name and version of the distribution."""
    for line in (read_text(root / "etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'") or None
    return None


def power_sensors(root: Path = SYSTEM) -> tuple[PowerSensor, ...]:
    """Every readable sensor of energy or power that does not show 0."""
    return tuple(sensor for sensor, _ in (*rapl_domains(root), *board_rails(root)))


def rapl_domains(root: Path = SYSTEM) -> Iterator[tuple[PowerSensor, Path]]:
    """Energy counters of the processor's packages and their memory."""
    for folder in sorted((root / POWERCAP).glob(RAPL)):
        name = read_text(folder / "name") or ""
        if name.startswith(RAPL_DOMAINS) and read_number(folder / "energy_uj"):
            yield PowerSensor(name=f"{folder.name} {name}", kind="rapl", measures="energy"), folder


def board_rails(root: Path = SYSTEM) -> Iterator[tuple[PowerSensor, tuple[Path, ...]]]:
    """Power of rails, with the files to multiply: one [µW], or voltage [mV] and current [mA]."""
    for folder in sorted((root / HWMON).glob("hwmon*")):
        chip = read_text(folder / "name") or folder.name
        if chip == INA3221:
            yield from _ina3221(folder)
            continue
        for file in sorted((*folder.glob("power*_input"), *folder.glob("power*_average"))):
            if read_number(file):
                label = read_text(folder / f"{file.name.partition('_')[0]}_label") or file.name
                yield PowerSensor(name=f"{chip} {label}", kind="hwmon", measures="power"), (file,)


def _ina3221(folder: Path) -> Iterator[tuple[PowerSensor, tuple[Path, ...]]]:
    for channel in INA3221_CHANNELS:
        files = folder / f"in{channel}_input", folder / f"curr{channel}_input"
        if all(read_number(file) for file in files):
            label = read_text(folder / f"in{channel}_label") or f"channel {channel}"
            yield PowerSensor(name=label, kind="ina3221", measures="power"), files


def _core(core: int, root: Path) -> CoreState:
    capacity, _ = core_kind(core, root)
    return CoreState(
        number=core,
        capacity=capacity,
        governor=governor(core, root),
        min_mhz=frequency_mhz(core, "min", root),
        max_mhz=frequency_mhz(core, "max", root),
        current_mhz=frequency_mhz(core, "cur", root),
    )


def temperatures(root: Path = SYSTEM) -> Iterator[Temperature]:
    """Every readable temperature sensor."""
    for folder in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        value = read_number(folder / "temp")
        if value is not None:
            yield Temperature(name=read_text(folder / "type") or folder.name, celsius=value / 1e3)
    for file in sorted((root / HWMON).glob("hwmon*/temp*_input")):
        value = read_number(file)
        if value is not None:
            chip = read_text(file.parent / "name") or file.parent.name
            label = read_text(file.with_name(file.name.replace("_input", "_label"))) or file.name.partition("_")[0]
            yield Temperature(name=f"{chip} {label}", celsius=value / 1e3)


def throttled(root: Path = SYSTEM) -> bool | None:
    """Whether the processor is slowed down right now: by its firmware, or by an active cooling device."""
    found: list[bool] = []
    flags = read_text(root / PI_THROTTLED)
    if flags is not None:
        try:
            found.append(bool(int(flags, 16) & PI_NOW))
        except ValueError:
            return None
    for folder in (root / "sys/class/thermal").glob("cooling_device*"):
        kind, level = read_text(folder / "type") or "", read_number(folder / "cur_state")
        if level is not None and (kind == "Processor" or "cpufreq" in kind):
            found.append(level > 0)
    return any(found) if found else None


def power_source(root: Path = SYSTEM) -> PowerSource | None:
    """'battery' while one is discharged, 'ac' when mains or USB supply is on or a battery is charged or full."""
    discharging = supplied = False
    for folder in (root / "sys/class/power_supply").glob("*"):
        if read_text(folder / "scope") == "Device":  # battery of a mouse or a similar device
            continue
        if read_text(folder / "type") == "Battery":
            status = read_text(folder / "status")
            discharging |= status == "Discharging"
            supplied |= status in ("Charging", "Full", "Not charging")
        else:
            supplied |= read_number(folder / "online") == 1
    return "battery" if discharging else "ac" if supplied else None
