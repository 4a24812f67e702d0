"""What drawing one frame takes, counted: splats, instances, and how often a warp evaluates a splat at its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import numpy as np

from edgegs.backends.base import Backend
from edgegs.camera import Camera
from edgegs.kernels.headers import constants
from edgegs.kernels.variants import Variant
from edgegs.pack import AnyScene
from edgegs.renderer import Renderer
from edgegs.room import TILE

C = constants()
#: Rows of the 16 pixels wide piece of a tile that one warp works on until all its pixels are finished.
WARP_ROWS = {"block": 32 // TILE, "dual": 2 * 32 // TILE, "warp": int(C["PATCH_HEIGHT"])}
#: Pairs of pixel and splat that are looked at, at most; beyond, every k-th tile stands for the others. Half a second.
MAX_LOOKED_AT = 1 << 24
_STEP = 64


@dataclass(frozen=True)
class Counts:
    """What one frame takes.

    Attributes:
        n_splats, n_visible, n_instances: exact; see ``Frame``.
        n_evaluations: pixels that warps evaluate splats at, finished ones of a busy warp included.
        n_evaluations_max: the same if no pixel ever finished, and no splat was left out while staging.
        n_tiles, n_tiles_counted: with a splat in them; how many of those ``n_evaluations`` was counted in.
    """

    width: int
    height: int
    sh_degree: int
    n_splats: int
    n_visible: int
    n_instances: int
    n_evaluations: int
    n_evaluations_max: int
    n_tiles: int
    n_tiles_counted: int


def count_frame(backend: Backend, scene: AnyScene, variant: Variant, camera: Camera) -> Counts:
    """Draw one frame with a variant's kernels and count; raises DeviceError when it does not fit here."""
    renderer = Renderer(backend, scene, camera.width, camera.height, variant.name)
    try:
        frame = renderer.render(camera)
        return Counts(
            camera.width, camera.height, scene.sh_degree, frame.n_splats, frame.n_visible, frame.n_instances,
            *_evaluations(renderer, variant),
        )  # fmt: skip
    finally:
        renderer.close()


def _evaluations(renderer: Renderer, variant: Variant) -> Tuple[int, int, int, int]:
    """The last four of ``Counts``; tiles that stand for others are taken evenly from few to many splats."""
    starts = renderer.read("tile_starts").astype(np.int64)
    splats, means2d, conics = (renderer.read(name) for name in ("instance_splats", "splat_means2d", "splat_conics"))
    sizes = np.diff(starts)
    tiles = np.flatnonzero(sizes)
    most = int(sizes.sum()) * TILE * TILE
    step = max(1, -(-most // MAX_LOOKED_AT))
    looked_at = tiles[np.argsort(sizes[tiles], kind="stable")][step // 2 :: step]
    n_tiles_x = -(-renderer.width // TILE)
    total = 0
    for tile in looked_at:
        left, top = int(tile) % n_tiles_x * TILE, int(tile) // n_tiles_x * TILE
        inside = (min(TILE, renderer.height - top), min(TILE, renderer.width - left))
        ids = splats[starts[tile] : starts[tile + 1]]
        with np.errstate(all="ignore"):  # a splat of kilometres may overflow: it does so in the kernels, too
            total += _of_tile(means2d, conics, ids, left, top, inside, variant.raster)
    return round(total * len(tiles) / max(1, len(looked_at))), most, len(tiles), len(looked_at)


def _of_tile(
    means2d: np.ndarray, conics: np.ndarray, ids: np.ndarray, left: int, top: int, inside: Tuple[int, int], raster: str
) -> int:
    """Evaluations of one tile, whose splats are ``ids`` from front to back. ``inside``: its rows and columns that the
    picture has; the others are finished from the start."""
    rows = WARP_ROWS[raster]
    n_pieces = TILE // rows
    x = (left + np.arange(TILE) + 0.5).astype(np.float32)
    y = (top + np.arange(TILE) + 0.5).astype(np.float32)
    transmittance = np.zeros((TILE, TILE), np.float32)
    transmittance[: inside[0], : inside[1]] = 1
    n_blended = np.zeros((TILE, TILE), np.int64)  # splats of the list that each pixel looks at before it is finished
    reaches = np.zeros((n_pieces, len(ids)), bool)
    for first in range(0, len(ids), _STEP):
        part = ids[first : first + _STEP]
        dx, dy = x - means2d[part, :1], y - means2d[part, 1:]
        xx, xy, yy, opacity = (conics[part, i][:, None, None] for i in range(4))
        dx, dy = dx[:, None, :], dy[:, :, None]
        alpha = opacity * np.exp(-0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy)
        alpha = np.minimum(alpha, np.float32(C["ALPHA_MAX"]))
        alpha[~(alpha >= C["ALPHA_MIN"])] = 0
        reaches[:, first : first + len(part)] = alpha.reshape(len(part), n_pieces, -1).any(axis=2).T
        left_over = transmittance * np.cumprod(1 - alpha, axis=0)
        n_blended += (left_over >= C["TRANSMITTANCE_MIN"]).sum(axis=0)
        transmittance = left_over[-1]
        if transmittance.max() < C["TRANSMITTANCE_MIN"]:
            break
    # the splat that would finish a pixel is evaluated, too; a warp goes on until its last pixel is finished
    n_blended[: inside[0], : inside[1]] += 1
    ends = np.minimum(n_blended.reshape(n_pieces, -1).max(axis=1), len(ids))
    if raster != "warp":
        return int(ends.sum()) * rows * TILE
    ends = np.minimum(-(-ends // 32) * 32, len(ids))  # looks up every 32 splats only
    return sum(int(reaches[piece, :end].sum()) for piece, end in enumerate(ends)) * rows * TILE
