"""Made-up machines for the installer: a root folder, and commands that record how they were called and do as little as
the installer can notice. The script is the real one; nothing outside the root is touched."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

CHECKOUT = Path(__file__).resolve().parent.parent

#: Real programs that neither change the system nor depend on it.
_REAL = (
    *("awk", "basename", "bash", "cat", "chmod", "cmp", "cp", "cut", "date", "dd", "df", "dirname", "env", "find"),
    *("flock", "grep", "head", "ln", "mkdir", "mv", "printf", "readlink", "realpath", "rm", "rmdir", "sed", "sleep"),
    *("sha256sum", "sort", "tail", "touch", "tr", "xargs"),
)

#: Calls that change nothing, by their first words.
LOOKS = ("id ", "getent ", "dpkg-query ", "dpkg --audit", "systemctl --version", "systemctl is-", "uname ", "modinfo ")
LOOKS += ("nvidia-smi ", "jtop --version", "gst-inspect-1.0 ", "nvcc --version", "python3 -c", "python3.8 -c")
LOOKS += ("venv-python -c", "venv-python -m pip --version", "venv-python -m pip show", "edgegs kernels list")
LOOKS += ("edgegs check-config", "edgegs doctor", "runuser ")

#: Those that the script below stands for on every machine.
_FAKES = (
    *("id", "getent", "useradd", "userdel", "usermod", "uname", "dpkg-query", "dpkg", "apt-get", "systemctl"),
    *("modinfo", "modprobe", "fallocate", "mkswap", "swapon", "swapoff", "runuser", "python3", "chown", "udevadm"),
    "g++",
)
_FAKE = Path(__file__).resolve().parent / "install_fake.sh"


class Machine:
    """A root folder and its commands.

    Attributes:
        root: what the installer takes for /.
        state: facts that the commands tell, and ``calls``, what was asked of them.
        source: a checkout with the real installer and units, and a small package.
    """

    def __init__(
        self, folder: Path, facts: Dict[str, str], files: Dict[str, str], commands: Sequence[str] = ()
    ) -> None:
        self.root, self.state, self.bin = folder / "root", folder / "state", folder / "bin"
        self.source = folder / "source"
        for path in (self.root / "var", self.root / "tmp", self.state, self.bin):
            path.mkdir(parents=True)
        usual = {"etc/passwd": "root:x:0:0\n", "etc/fstab": "/dev/root / ext4\n", "proc/swaps": "Filename Type\n"}
        for name, words in {**usual, **files}.items():
            self.write(self.root / name, words)
        for name, words in {"packages": "", "modules": "", "calls": "", **facts}.items():
            self.write(self.state / name, words)
        words = _FAKE.read_text().replace("@BIN@", str(self.bin)).replace("@ROOT@", str(self.root))
        words = words.replace("@STATE@", str(self.state)).replace("@PYTHON@", sys.executable)
        words = words.replace("@LOOKS@", " | ".join(f"'{start}'*" for start in LOOKS))
        self.executable(self.bin / "fake", words)
        for name in _REAL:
            found = shutil.which(name)
            assert found, name
            (self.bin / name).symlink_to(found)
        for name in (*_FAKES, *commands):
            (self.bin / name).symlink_to("fake")
        for name in ("jetson", "systemd", "configs", "cuda", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
            if (CHECKOUT / name).is_dir():
                shutil.copytree(str(CHECKOUT / name), str(self.source / name), ignore=shutil.ignore_patterns("ledger"))
            else:
                shutil.copy(str(CHECKOUT / name), str(self.source / name))
        self.write(self.source / "edgegs" / "__init__.py", '__version__ = "0.1.0"\n')

    @staticmethod
    def write(path: Path, words: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words)

    @staticmethod
    def executable(path: Path, words: str) -> None:
        Machine.write(path, words)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def nvcc(self, release: str) -> None:
        """A toolkit in /usr/local, off PATH."""
        self.write(self.state / "nvcc", release)
        folder = self.root / "usr/local" / f"cuda-{release}" / "bin"
        folder.mkdir(parents=True)
        (folder / "nvcc").symlink_to(self.bin / "fake")

    def run(self, *options: str, check: Optional[int] = 0) -> subprocess.CompletedProcess:
        """The installer; ``output`` of the answer is not split into stdout and stderr."""
        self.write(self.state / "calls", "")
        environment = {"PATH": str(self.bin), "EDGEGS_INSTALL_ROOT": str(self.root), "LANG": "C.UTF-8"}
        done = subprocess.run(
            ["bash", str(self.source / "jetson" / "install.sh"), *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            timeout=60,
        )
        if check is not None:
            assert done.returncode == check, done.stdout
        return done

    def calls(self) -> List[str]:
        return (self.state / "calls").read_text().splitlines()

    def changes(self) -> List[str]:
        """Calls that change something."""
        return [call for call in self.calls() if not call.startswith(LOOKS)]

    def tree(self) -> Dict[str, str]:
        """Every file below the root: mode, and content or target."""
        found = {}
        for folder, folders, names in os.walk(str(self.root)):
            for name in [*folders, *names]:
                path = Path(folder) / name
                mode = path.lstat().st_mode
                words = os.readlink(str(path)) if path.is_symlink() else path.read_text() if path.is_file() else ""
                found[str(path.relative_to(self.root))] = f"{stat.filemode(mode)} {words}".replace(str(self.root), "")
        return {name: words for name, words in found.items() if not name.startswith("run/lock")}

    def text(self, name: str) -> str:
        return (self.root / name).read_text()


KILLED = -signal.SIGKILL


def _memory(mb: int) -> str:
    return f"MemTotal: {mb * 1024} kB\n"


def nano(folder: Path) -> Machine:
    """JetPack 4.6: Ubuntu 18.04, Python 3.6, systemd 237, no group render, zram."""
    files = {
        "proc/device-tree/compatible": "nvidia,p3450-0000\0nvidia,jetson-nano\0nvidia,tegra210\0",
        "proc/device-tree/model": "NVIDIA Jetson Nano Developer Kit\0",
        "etc/nv_tegra_release": "# R32 (release), REVISION: 7.1, GCID: 1\n",
        "etc/os-release": 'ID=ubuntu\nVERSION_ID="18.04"\n',
        "etc/group": "root:x:0:\nvideo:x:44:\n",
        "proc/meminfo": _memory(3956),
        "proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 506500 0 5\n",
        "dev/nvmap": "",
        "dev/nvhost-gpu": "",
        "usr/lib/aarch64-linux-gnu/tegra/libcuda.so": "",
        "run/systemd/system/x": "",
    }
    facts = {"machine": "aarch64", "kernel": "4.9.253-tegra", "systemd": "237", "python3": "3.6"}
    machine = Machine(folder, facts, files)
    machine.nvcc("10.2")
    return machine


def orin(folder: Path) -> Machine:
    """JetPack 6, with jtop, and a device node that nobody has heard of."""
    files = {
        "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0",
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
        "etc/nv_tegra_release": "# R36 (release), REVISION: 4.0, GCID: 1\n",
        "etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\n',
        "etc/group": "root:x:0:\nvideo:x:44:\nrender:x:104:\njtop:x:998:\n",
        "proc/meminfo": _memory(7620),
        "dev/nvmap": "",
        "dev/nvgpu/igpu0/ctrl": "",
        "dev/nvgpu/igpu0/unheard-of": "",
        "run/systemd/system/x": "",
    }
    facts = {"machine": "aarch64", "kernel": "5.15.148-tegra", "systemd": "249", "python3": "3.10"}
    facts["jtop"] = "jtop 4.2.12"
    machine = Machine(folder, facts, files, ["jtop", "gst-inspect-1.0"])
    machine.nvcc("12.6")
    return machine


def desktop(folder: Path) -> Machine:
    """Ubuntu 24.04 with an Ada GPU and its driver, without a CUDA toolkit."""
    files = {
        "etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\n',
        "etc/group": "root:x:0:\nvideo:x:44:\nrender:x:993:\n",
        "proc/meminfo": _memory(32000),
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\n",
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
        "run/systemd/system/x": "",
    }
    facts = {"machine": "x86_64", "kernel": "6.8.0-40-generic", "systemd": "255", "python3": "3.12"}
    facts.update(capability="8.9\n", modules="nvidia-uvm\n", packages="g++\nca-certificates\nlibgl1\nlibglib2.0-0t64\n")
    return Machine(folder, facts, files, ["nvidia-smi", "nvidia-modprobe"])


def debian(folder: Path) -> Machine:
    """Debian 12 without a GPU, in a container: systemd is installed, but does not run."""
    files = {
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "etc/group": "root:x:0:\nvideo:x:44:\nrender:x:105:\n",
        "proc/meminfo": _memory(16000),
    }
    facts = {"machine": "x86_64", "kernel": "6.1.0-22-amd64", "systemd": "252", "python3": "3.11"}
    return Machine(folder, facts, files)


MACHINES = {"nano": nano, "orin": orin, "desktop": desktop, "debian": debian}
