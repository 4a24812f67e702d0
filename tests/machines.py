"""Made-up machines for the doctor's tests: folders that stand for /proc, /sys, /etc and /dev."""

from __future__ import annotations


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def nano(root):
    for tree in (root / "proc/device-tree", root / "sys/firmware/devicetree/base"):
        write(tree / "compatible", "nvidia,jetson-nano\0nvidia,tegra210\0")
        write(tree / "model", "NVIDIA Jetson Nano Developer Kit\0")
    write(root / "etc/nv_tegra_release", "# R32 (release), REVISION: 7.1, GCID: 1\n")
    for node in ("nvmap", "nvhost-ctrl-gpu", "nvhost-gpu"):
        write(root / "dev" / node, "")


def desktop(root, driver="NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"):
    write(root / "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(root / "sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    write(root / "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")  # its sound
    write(root / "sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n")
    if driver:
        write(root / "proc/driver/nvidia/version", driver)


def of(found, check):
    return [one for one in found if one.check == check]


def only(found, check):
    (one,) = of(found, check)
    return one
