"""Compiles the kernels while installing: what the compilers at hand can build goes into the wheel.

A machine without a compiler still gets a working package: `edgegs kernels build` does it later.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))


class BuildWithKernels(build_py):
    def run(self):
        super().run()
        if self.editable_mode:  # a checkout builds into the cache instead
            return
        if os.environ.get("EDGEGS_BUILD_KERNELS") == "0":  # install.sh builds them itself, one architecture at a time
            return
        try:
            from edgegs.kernels.build import build, table

            words = table(build(folder=Path(self.build_lib) / "edgegs" / "data" / "images"))
        except Exception as error:  # whatever a compiler does: the package works without, and builds later
            print(f"edgegs: no kernels are built: {type(error).__name__}: {error}")
            print("edgegs: run `edgegs kernels build` later")
        else:
            print("edgegs: kernels built for this machine:")
            print(words)


class BinaryDistribution(Distribution):
    """The wheel holds code for one processor, so its name must say so."""

    def has_ext_modules(self):
        return True


setup(license="Apache-2.0", cmdclass={"build_py": BuildWithKernels}, distclass=BinaryDistribution)
