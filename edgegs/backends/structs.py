"""Parameter structs as the compiled kernels receive them: what the backends that launch real kernels share."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgegs.backends.base import Backend, Buffer, Params
from edgegs.kernels.headers import struct_dtype


class StructParams(Params):
    """The bytes of one struct of cuda/params.h, at ``address``."""

    def __init__(self, struct: str) -> None:
        self.record = np.zeros((), struct_dtype(struct))
        self.address = self.record.ctypes.data

    def set(self, **fields: Any) -> None:
        for name, value in fields.items():
            if isinstance(value, Buffer):
                value = value.address
            self.record[name] = 0 if value is None else value


class StructBackend(Backend):
    """A backend whose kernels take their parameters as bytes."""

    def params(self, struct: str, **fields: Any) -> StructParams:
        params = StructParams(struct)
        params.set(**fields)
        return params
