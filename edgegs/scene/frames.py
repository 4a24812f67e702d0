"""Axes that scene files are written in. edgegs keeps scenes as x right, y down, z forward ("rdf", as COLMAP has it)."""

from __future__ import annotations

import numpy as np

FRAMES = ("rdf", "rub")

# x right, y up, z back <-> x right, y down, z forward: half a turn about x. Real spherical harmonics of the turned
# direction are the old ones with the signs of their parity in y and z.
_TURN_MEANS = np.array([1, -1, -1], np.float32)
_TURN_QUATS = np.array([1, 1, -1, -1], np.float32)
_TURN_SH = np.array([1, -1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1], np.float32)


def turn_means(means: np.ndarray) -> np.ndarray:
    """(n, 3) positions from "rub" to "rdf", or back."""
    return means * _TURN_MEANS


def turn_quats(quats: np.ndarray) -> np.ndarray:
    """(n, 4) quaternions, w first, from "rub" to "rdf", or back."""
    return quats * _TURN_QUATS


def turn_sh(sh: np.ndarray) -> np.ndarray:
    """(n, K, 3) coefficients, degree 0 to 3, from "rub" to "rdf", or back."""
    return sh * _TURN_SH[: sh.shape[1], None]
