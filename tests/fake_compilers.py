"""Stand-ins for compilers of releases that are not here: nvcc and ptxas as scripts, NVRTC as a small C library."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Sequence

#: Before any test has changed it.
PATH = os.environ["PATH"]

#: What the help of an nvcc before 11.0 says (it has no --list-gpu-arch); its examples name other architectures.
HELP = """
--gpu-architecture <arch>                       (-arch)
        Specify the name of the class of NVIDIA 'virtual' GPU architecture, such as 'sm_999'.
        For instance, 'nvcc --gpu-architecture=sm_998' is a shorthand.
        Allowed values for this option:  {virtual},
        {real}.

--gpu-code <code>,...                           (-code)
        Specify the name of the NVIDIA GPU to assemble and optimize PTX for.
        Allowed values for this option:  {virtual},{real}.

--ptxas-options <options>,...                   (-Xptxas)
        Specify options directly to ptxas, for 'sm_997'.
"""

NVCC = """#!/bin/sh
for argument; do
    case "$argument" in
    --version)
        echo "nvcc: NVIDIA (R) Cuda compiler driver"
        echo "Cuda compilation tools, release {release}, V{release}.89"
        exit 0;;
    --dryrun) echo '#$ _HERE_={home}' >&2; exit 0;;
    --list-gpu-arch) {list_arch};;
    --help) cat '{home}/help.txt'; exit 0;;
    -arch=*) arch=${{argument#-arch=}};;
    -cubin) kind=cubin;;
    -ptx) kind=ptx;;
    esac
    [ "$previous" = -o ] && output=$argument
    previous=$argument
done
case " {archs} " in
*" ${{arch#*_}} "*) ;;
*) echo "nvcc fatal   : Unsupported gpu architecture '$arch'" >&2; exit 1;;
esac
{before}
echo "$kind $arch $(command -v ptxas) $*" > "$output"
echo "ptxas info    : Compiling entry function 'k' for '$arch'" >&2
echo "    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads" >&2
echo "ptxas info    : Used 31 registers, used 1 barriers, 2048 bytes smem, 368 bytes cmem[0]" >&2
"""

PTXAS = """#!/bin/sh
echo "ptxas: NVIDIA (R) Ptx optimizing assembler"
echo "Cuda compilation tools, release {release}, V{release}.89"
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_ptxas(folder: Path, release: str) -> Path:
    return script(folder / "ptxas", PTXAS.format(release=release))


def fake_nvcc(
    folder: Path, release: str, archs: Sequence[int], can_list: bool = True, with_ptxas: bool = True, before: str = ":"
) -> Path:
    """A toolkit in ``folder``/bin; ``before`` runs before it writes its output. An image says what made it."""
    home = folder / "bin"
    listed = "; ".join(f"echo compute_{arch}" for arch in archs) + "; exit 0"
    unknown = 'echo "nvcc fatal   : Unknown option -list-gpu-arch" >&2; exit 1'
    words = NVCC.format(
        release=release,
        home=home,
        archs=" ".join(str(arch) for arch in archs),
        list_arch=listed if can_list else unknown,
        before=before,
    )
    path = script(home / "nvcc", words)
    virtual, real = (",".join(f"'{kind}_{arch}'" for arch in archs) for kind in ("compute", "sm"))
    (home / "help.txt").write_text(HELP.format(virtual=virtual, real=real))
    if with_ptxas:
        fake_ptxas(home, release)
    return path


#: Archs that the three releases of jetson.md and design.md know.
NVCC_10_2 = (30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75)
NVCC_11_8 = (35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90)
NVCC_13_0 = (75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121)

NVRTC = r"""
#include <string.h>
static const char *ptx = "// fake ptx", *told = "compiled", *no = "error: bad architecture";
static int refused;
int nvrtcVersion(int *a, int *b) { *a = MAJOR; *b = MINOR; return 0; }
int nvrtcCreateProgram(void **p, const char *s, const char *n, int k, const char **h, const char **i) {
    *p = (void *)1; return s && n && !k && !h && !i ? 0 : 1;
}
int nvrtcCompileProgram(void *p, int n, const char **options) {
    refused = 0;
    for (int i = 0; i < n; ++i) refused |= strstr(options[i], "_89") != 0 || strstr(options[i], "ptxas") != 0;
    return refused && p ? 5 : 0;
}
int nvrtcDestroyProgram(void **p) { *p = 0; return 0; }
int nvrtcGetProgramLogSize(void *p, size_t *n) { *n = strlen(refused ? no : told) + (p != 0); return 0; }
int nvrtcGetProgramLog(void *p, char *out) { strcpy(out, refused ? no : told); return p == 0; }
int nvrtcGetPTXSize(void *p, size_t *n) { *n = strlen(ptx) + (p != 0); return 0; }
int nvrtcGetPTX(void *p, char *out) { strcpy(out, ptx); return p == 0; }
#ifdef ARCHS
int nvrtcGetNumSupportedArchs(int *n) { *n = ARCHS; return 0; }
int nvrtcGetSupportedArchs(int *out) { for (int i = 0; i < ARCHS; ++i) out[i] = 60 - i; return 0; }
#endif
"""


def fake_nvrtc(path: Path, major: int, minor: int, *defines: str) -> Path:
    """A library with the functions that NVRTC had before 11.1: no cubins, and no list of architectures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.parent / (path.name + ".c")
    source.write_text("#include <stddef.h>\n" + NVRTC)
    flags = [f"-DMAJOR={major}", f"-DMINOR={minor}", *defines]
    command = ["g++", "-x", "c", "-shared", "-fPIC", *flags, str(source), "-o", str(path)]
    subprocess.run(command, check=True, env=dict(os.environ, PATH=PATH))
    source.unlink()
    return path
