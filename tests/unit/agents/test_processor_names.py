"""Two processors that run at different speeds have different names, by which measurements are shared."""

from pathlib import Path

import pytest

from profiling_agents.sensing.sensors import cpu_model

PI_4 = """
processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

Hardware\t: BCM2835
Revision\t: c03114
Model\t\t: Raspberry Pi 4 Model B Rev 1.4
"""
A55 = "processor : 0\nmodel name : ARMv8 Processor rev 0 (v8l)\nFeatures : fp asimd asimdhp asimddp\n"
A55 += "CPU implementer : 0x41\nCPU part : 0xd05\n"
BIG_LITTLE = A55 + "processor : 4\nFeatures : fp asimd asimdhp asimddp\nCPU implementer : 0x41\nCPU part : 0xd0b\n"
V1 = "processor : 0\nFeatures : fp asimd asimdhp asimddp sve i8mm bf16\nCPU implementer : 0x41\nCPU part : 0xd40\n"
X86 = "processor : 0\nvendor_id : AuthenticAMD\nmodel name : AMD EPYC 7B13\nflags : avx2\n"
OTHER = "processor : 0\nFeatures : fp asimd\nCPU implementer : 0xc0\nCPU part : 0xac3\n"


@pytest.mark.parametrize(
    ("cpuinfo", "board", "name"),
    [
        (PI_4, "Raspberry Pi 4 Model B Rev 1.4\0", "Raspberry Pi 4 Model B Rev 1.4, Cortex-A72, asimd"),
        (PI_4, None, "Raspberry Pi 4 Model B Rev 1.4, Cortex-A72, asimd"),
        (A55, None, "Cortex-A55, asimd asimdhp asimddp"),
        (BIG_LITTLE, "Orange Pi 5", "Orange Pi 5, Cortex-A55 + Cortex-A76, asimd asimdhp asimddp"),
        (V1, None, "Neoverse-V1, asimd asimdhp asimddp i8mm bf16 sve"),
        (OTHER, None, "core 0xac3 of Ampere, asimd"),
        (X86, None, "AMD EPYC 7B13"),
    ],
)
def test_a_processor_is_named_by_what_tells_it_from_others(
    cpuinfo: str, board: str | None, name: str, tmp_path: Path
) -> None:
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    if board is not None:
        (tmp_path / "proc/device-tree/model").write_text(board)
    assert cpu_model(tmp_path) == name
