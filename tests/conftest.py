"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Iterator

import pytest

from edgegs.backends.base import Backend
from edgegs.backends.host import HostBackend
from edgegs.backends.reference import ReferenceBackend


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real scenes and hostile files that lie beside the checkout (``../shared/data``, see its manifest)."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside the checkout: real scenes are not tested")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tests build their own kernels, in a cache of their own."""
    given = os.environ.get("EDGEGS_TEST_CACHE")  # a cache with GPU images that this machine cannot build
    folder = Path(given) if given else tmp_path_factory.mktemp("cache")
    before = os.environ.get("EDGEGS_CACHE")
    os.environ["EDGEGS_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["EDGEGS_CACHE"]
    else:
        os.environ["EDGEGS_CACHE"] = before


@pytest.fixture(scope="session")
def kernels(_cache: Path) -> Path:
    """Folder of freshly built host and host-check kernels."""
    from edgegs.kernels.build import build

    for outcome in build(["host", "host-check"]):
        assert outcome.image is not None, outcome.reason
    return _cache / "kernels"


def open_backend(name: str) -> Backend:
    """A backend by the names that the tests are parametrised with."""
    if name == "reference":
        return ReferenceBackend()
    if name.startswith("cuda"):
        if not has_gpu():
            pytest.skip("no NVIDIA GPU (or no pycuda): CUDA is not tested")
        from edgegs.backends.cuda import CudaBackend

        return CudaBackend(image=name.partition(":")[2] or None)
    if name == "host-check-shuffled":
        return HostBackend(arch="host-check", shuffle_seed=11)
    return HostBackend(arch=name, threads=2)


@lru_cache(maxsize=None)
def has_gpu() -> bool:
    try:
        import pycuda.driver as driver

        driver.init()
    except Exception:  # no pycuda, no driver or no device: each in its own words
        return False
    return driver.Device.count() > 0


#: Every implementation of the kernels; the last needs a GPU.
KERNEL_BACKENDS = ("host", "host-check", "host-check-shuffled", pytest.param("cuda", marks=pytest.mark.cuda))


@pytest.fixture(params=KERNEL_BACKENDS)
def backend(request: pytest.FixtureRequest, kernels: Path) -> Iterator[Backend]:
    with open_backend(request.param) as opened:
        yield opened


@pytest.fixture(params=("reference", *KERNEL_BACKENDS))
def any_backend(request: pytest.FixtureRequest, kernels: Path) -> Iterator[Backend]:
    with open_backend(request.param) as opened:
        yield opened


@pytest.fixture
def host(kernels: Path) -> Iterator[Backend]:
    with open_backend("host") as opened:
        yield opened
