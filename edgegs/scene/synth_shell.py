"""The synthetic room itself: floor, beams, walls with holes for what hangs on them, windows with curtains.

The measures that the furniture has to respect stand here, too."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from edgegs.scene import synth_paint as paint
from edgegs.scene.synth_light import Lamp
from edgegs.scene.synth_paint import srgb
from edgegs.scene.synth_surfaces import Surface, Vector, box, cushion, grid, rectangle, unit

X, Y, Z = 4.0, 3.5, 3.0
#: Towards the sun.
SUN = unit(np.array([-0.42, 0.80, 0.46]))
WINDOWS = ((-2.75, -0.35, 0.42, 2.52), (0.55, 2.95, 0.42, 2.52))  # x0, x1, z0, z1
PANE_Y = 3.62
BEAMS = (-3.0, -1.0, 1.0, 3.0)
RUG = (0.75, -0.25, 1.65, 1.15)  # centre x, y, half sizes
SHELF = (1.28, 3.05, 2.15)  # y0, y1, top
#: Pictures: painting, place along the wall, height of its middle, width, height, wall.
FRAMES = (
    (0, -0.45, 1.68, 1.30, 0.86, "+x"), (2, -1.72, 1.78, 0.56, 0.70, "+x"), (1, 0.72, 1.86, 0.52, 0.52, "+x"),
    (2, -0.9, 1.65, 1.20, 0.90, "-x"), (1, 1.1, 1.65, 0.70, 0.95, "-x"), (3, 0.0, 1.85, 1.5, 0.8, "-y"),
)  # fmt: skip

OAK, WALNUT = srgb(176, 124, 76), srgb(92, 58, 36)
WHITE, PLASTER, TEAL = srgb(236, 232, 224), srgb(228, 223, 214), srgb(38, 86, 92)


class Builder:
    """Collects surfaces and what blocks light."""

    def __init__(self) -> None:
        self.surfaces: List[Surface] = []
        self.boxes: List[Tuple[np.ndarray, np.ndarray]] = []
        self.ellipsoids: List[Tuple[np.ndarray, np.ndarray]] = []
        self.panes: List[Tuple[float, float, float, float]] = []
        self.lamps: List[Lamp] = []

    def add(self, *surfaces: Surface) -> None:
        self.surfaces.extend(surfaces)

    def block_box(self, low: Vector, high: Vector) -> None:
        self.boxes.append((np.asarray(low, float), np.asarray(high, float)))

    def block_ellipsoid(self, center: Vector, radii: Vector) -> None:
        self.ellipsoids.append((np.asarray(center, float), np.asarray(radii, float)))

    def box(self, low: Vector, high: Vector, what: paint.Paint, blocks: bool = True, **options) -> None:
        self.add(*box(low, high, what, **options))
        if blocks:
            self.block_box(low, high)

    def cushion(self, center: Vector, half: Vector, what: paint.Paint, **options) -> None:
        self.add(cushion(center, half, what, **options))
        c, h = np.asarray(center, float), 0.86 * np.asarray(half, float)
        self.block_box(c - h, c + h)


def build_shell(room: Builder) -> None:
    """Floor, ceiling, walls, beams, windows."""
    for window in WINDOWS:
        _window(room, *window)
    x, y, z = X, Y, Z
    plaster, teal = paint.plain(PLASTER, 0.05), paint.plain(TEAL, 0.10, 5.0)
    rug = (RUG[0] - RUG[2], RUG[0] + RUG[2], RUG[1] - RUG[3], RUG[1] + RUG[3])
    _holed(room, (-x, -y, 0), (1, 0, 0), (0, 1, 0), (2 * x, 2 * y), [_from(rug, -x, -y)], 0.12, paint.parquet(),
           density=3.0, gloss=0.15)  # fmt: skip
    # The ceiling between the beams: a splat that reached behind one would be drawn in front of its far part.
    edges = [-x, *(b + s for b in BEAMS for s in (-0.09, 0.09)), x]
    for lo, hi in zip(edges[::2], edges[1::2]):
        room.add(rectangle((lo, -y, z), (0, 2 * y, 0), (hi - lo, 0, 0), 0.25, paint.plain(WHITE), density=0.55))
    for beam in BEAMS:
        low, high = (beam - 0.09, -y, z - 0.20), (beam + 0.09, y, z)
        room.box(low, high, paint.wood(WALNUT * 1.2, axis=1), step=0.2, skip="+z -y +y", density=2.0)
    # Walls have holes behind whatever hangs or stands on them, for the same reason.
    holes = {wall: [_behind(*frame) for frame in FRAMES if frame[-1] == wall] for wall in ("+x", "-x", "-y")}
    holes["+x"].append((SHELF[0], SHELF[1], 0.0, SHELF[2]))
    _holed(room, (x, -y, 0), (0, 1, 0), (0, 0, 1), (2 * y, z), [_from(h, -y, 0) for h in holes["+x"]], 0.14, teal,
           flip=True, density=0.9, gloss=0.02, open_edges=False)  # fmt: skip
    _holed(room, (-x, -y, 0), (0, 1, 0), (0, 0, 1), (2 * y, z), [_from(h, -y, 0) for h in holes["-x"]], 0.18, plaster,
           density=0.5, open_edges=False)  # fmt: skip
    _holed(room, (-x, -y, 0), (1, 0, 0), (0, 0, 1), (2 * x, z), [_from(h, -x, 0) for h in holes["-y"]], 0.18, plaster,
           flip=True, density=0.5, open_edges=False)  # fmt: skip
    _holed(room, (-x, y, 0), (1, 0, 0), (0, 0, 1), (2 * x, z), [_from(w, -x, 0) for w in WINDOWS], 0.12, plaster,
           density=1.8)  # fmt: skip
    # Coarse backing, well behind: through the pinholes between splats one sees a wall and not the sky.
    far = 0.3
    room.add(
        rectangle((-x, -y, -far), (2 * x, 0, 0), (0, 2 * y, 0), 0.4, paint.parquet(), density=0.12),
        rectangle((-x, -y, z + far), (0, 2 * y, 0), (2 * x, 0, 0), 0.4, paint.plain(WHITE), density=0.08),
        rectangle((x + far, -y, 0), (0, 0, z), (0, 2 * y, 0), 0.4, teal, density=0.12),
        rectangle((-x - far, -y, 0), (0, 2 * y, 0), (0, 0, z), 0.4, plaster, density=0.08),
        rectangle((-x, -y - far, 0), (0, 0, z), (2 * x, 0, 0), 0.4, plaster, density=0.08),
    )
    white = paint.plain(WHITE, 0.02)
    for low, high, hidden in (
        ((-x, y - 0.02, 0), (x, y, 0.13), "+y"), ((-x, -y, 0), (x, -y + 0.02, 0.13), "-y"),
        ((x - 0.02, -y, 0), (x, y, 0.13), "+x"), ((-x, -y, 0), (-x + 0.02, y, 0.13), "-x"),
    ):  # fmt: skip
        room.add(*box(low, high, white, step=0.3, skip="-z " + hidden, density=1.5))


_Hole = Tuple[float, float, float, float]


def _from(hole: _Hole, u: float, v: float) -> _Hole:
    return hole[0] - u, hole[1] - u, hole[2] - v, hole[3] - v


def _behind(kind: int, along: float, height: float, w: float, h: float, wall: str) -> _Hole:
    return along - w / 2, along + w / 2, height - h / 2, height + h / 2


def _holed(
    room: Builder,
    origin: Vector,
    u: Vector,
    v: Vector,
    size: Tuple[float, float],
    holes: List[_Hole],
    step: float,
    what: paint.Paint,
    flip: bool = False,
    **options,
) -> None:
    """A rectangle from ``origin`` along unit axes u and v, in upright strips that leave out the holes (in its u, v)."""
    o, du, dv = (np.asarray(a, float) for a in (origin, u, v))
    cuts = sorted({0.0, size[0], *(c for hole in holes for c in hole[:2])})
    for left, right in zip(cuts[:-1], cuts[1:]):
        middle, bottom = (left + right) / 2, 0.0
        for hole in [*sorted((h for h in holes if h[0] < middle < h[1]), key=lambda h: h[2]), (0, 0, size[1], 0)]:
            if hole[2] - bottom > 1e-6:
                corner = o + left * du + bottom * dv
                a, b = (right - left) * du, (hole[2] - bottom) * dv
                a, b = (b, a) if flip else (a, b)
                room.add(rectangle(corner, a, b, step, what, **options))
            bottom = hole[3]


def _window(room: Builder, x0: float, x1: float, z0: float, z1: float) -> None:
    """Reveal, sill, frame with six panes, and a curtain on either side."""
    white, y = paint.plain(WHITE, 0.02), Y
    depth = 0.22
    room.add(
        rectangle((x0, y, z0), (x1 - x0, 0, 0), (0, depth, 0), 0.1, white, density=3),
        rectangle((x0, y, z1), (0, depth, 0), (x1 - x0, 0, 0), 0.1, white, density=2),
        rectangle((x0, y, z0), (0, depth, 0), (0, 0, z1 - z0), 0.1, white, density=2),
        rectangle((x1, y, z0), (0, 0, z1 - z0), (0, depth, 0), 0.1, white, density=2),
        *box((x0 - 0.08, y - 0.14, z0 - 0.05), (x1 + 0.08, y, z0), white, step=0.15, skip="+y", density=4),
    )
    columns = np.linspace(x0, x1, 4)
    rows = [z0, z0 + 0.70 * (z1 - z0), z1]
    bars = [((c - 0.028, rows[0]), (c + 0.028, rows[2])) for c in columns]
    bars += [((x0, r - 0.028), (x1, r + 0.028)) for r in rows]
    for (bx0, bz0), (bx1, bz1) in bars:
        bar = box((bx0, PANE_Y - 0.035, bz0), (bx1, PANE_Y, bz1), white, step=0.12, skip="+y", density=9)
        room.add(*bar)
    for left, right in zip(columns[:-1], columns[1:]):
        for low, high in zip(rows[:-1], rows[1:]):
            room.panes.append((left + 0.028, right - 0.028, low + 0.028, high - 0.028))
    for edge, side in ((x0, -1.0), (x1, 1.0)):
        u, v = np.linspace(0, 1, 41)[:, None], np.linspace(0, 1, 12)[None, :]
        sway = 0.045 * np.sin(2 * np.pi * 5.5 * u + 0.5 * np.sin(3 * v)) * (0.55 + 0.45 * v)
        width = 0.44 + 0.06 * v
        points = np.stack([edge + side * (0.40 - width * u), y - 0.13 + sway + 0 * v, 2.72 - 2.68 * v + 0 * u], axis=2)
        linen = paint.fabric(srgb(226, 206, 180), 0.08)
        outward = (edge, y + 5, 1.5)
        room.add(grid(points, linen, outward, density=2.2, through=0.45))
    room.add(rod((x0 - 0.5, y - 0.13, 2.76), (x1 + 0.5, y - 0.13, 2.76), 0.016, paint.plain(srgb(60, 48, 38))))


def rod(start: Vector, end: Vector, radius: float, what: paint.Paint, n: int = 5) -> Surface:
    """A thin cylinder between two points."""
    a, b = np.asarray(start, float), np.asarray(end, float)
    w = unit(b - a)
    u = unit(np.cross(w, [0.3, 0.5, 0.8]))
    v = np.cross(w, u)
    phi = np.linspace(0, 2 * np.pi, n + 1)
    ring = radius * (np.cos(phi)[:, None] * u + np.sin(phi)[:, None] * v)
    along = np.linspace(0, 1, max(3, int(np.linalg.norm(b - a) / 0.3)))
    points = a + along[None, :, None] * (b - a) + ring[:, None, :]
    surface = grid(points, what, density=6.0, open_edges=False, tube_radius=radius)
    surface.normals = unit(np.broadcast_to(ring[:, None, :], points.shape))
    return surface
