"""What stands and hangs in the synthetic room."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from edgegs.scene import synth_paint as paint
from edgegs.scene.synth_light import Lamp, Space
from edgegs.scene.synth_outside import outside, sky_light
from edgegs.scene.synth_paint import srgb
from edgegs.scene.synth_shell import (
    FRAMES,
    OAK,
    PANE_Y,
    RUG,
    SHELF,
    SUN,
    WALNUT,
    WHITE,
    Builder,
    X,
    Y,
    Z,
    build_shell,
    rod,
)
from edgegs.scene.synth_surfaces import Surface, box, cushion, grid, rectangle, revolution

LAMP_GLOW = np.array([3.6, 2.25, 1.05])


def furnish() -> Tuple[List[Surface], List[Surface], Space]:
    """(surfaces inside, surfaces outside, what light meets)."""
    room = Builder()
    build_shell(room)
    _sofa(room)
    _armchair(room)
    _coffee_table(room)
    _bookshelf(room)
    _lamps(room)
    _plant(room)
    _pictures(room)
    _sideboard(room)
    space = Space(
        np.array([-X, -Y, 0.0]), np.array([X, Y, Z]), room.boxes, room.ellipsoids, room.panes, PANE_Y,
        SUN, np.array([19.0, 16.0, 12.0]), sky_light, room.lamps,
    )  # fmt: skip
    return room.surfaces, outside(), space


def _sofa(room: Builder) -> None:
    cloth = paint.fabric(srgb(206, 198, 184), 0.06)
    x = 3.38
    room.cushion((x, -0.45, 0.27), (0.52, 1.22, 0.16), cloth, power=0.25, density=2.5)
    for y in (-1.02, 0.12):
        room.cushion((x - 0.06, y, 0.47), (0.47, 0.56, 0.12), cloth, power=0.42, density=3)
        room.cushion((x + 0.34, y, 0.70), (0.17, 0.55, 0.30), cloth, power=0.5, density=3)
    for y in (-1.72, 0.82):
        room.cushion((x, y, 0.37), (0.54, 0.13, 0.29), cloth, power=0.35, density=3)
    room.cushion((x + 0.12, -1.28, 0.72), (0.13, 0.24, 0.22), paint.fabric(srgb(196, 84, 44)), power=0.6, density=6)
    room.cushion((x + 0.14, 0.42, 0.73), (0.13, 0.25, 0.23), paint.fabric(srgb(36, 88, 98)), power=0.6, density=6)
    room.cushion((x + 0.02, 0.22, 0.69), (0.10, 0.19, 0.17), paint.fabric(srgb(224, 168, 60)), power=0.6, density=6)
    for fx in (x - 0.42, x + 0.42):
        for y in (-1.6, 0.7):
            room.add(*box((fx - 0.025, y - 0.025, 0), (fx + 0.025, y + 0.025, 0.12), paint.wood(WALNUT, 2), density=3))


def _armchair(room: Builder) -> None:
    leather = paint.plain(srgb(158, 82, 40), 0.10, 9.0)
    x, y = -1.45, 1.45
    room.cushion((x, y, 0.30), (0.40, 0.40, 0.13), leather, power=0.3, density=3.5, gloss=0.05)
    room.cushion((x + 0.02, y - 0.02, 0.46), (0.34, 0.36, 0.10), leather, power=0.45, density=4, gloss=0.05)
    room.cushion((x - 0.02, y + 0.37, 0.68), (0.38, 0.12, 0.34), leather, power=0.45, density=4, gloss=0.05)
    for side in (-1, 1):
        room.cushion((x + side * 0.42, y, 0.44), (0.09, 0.40, 0.20), leather, power=0.4, density=4, gloss=0.05)
    room.cushion(
        (x + 0.05, y + 0.18, 0.66), (0.21, 0.10, 0.17), paint.fabric(srgb(226, 214, 186)), power=0.6, density=6
    )
    for fx in (x - 0.32, x + 0.32):
        for fy in (y - 0.32, y + 0.32):
            room.add(rod((fx, fy, 0), (fx, fy, 0.19), 0.02, paint.wood(WALNUT, 2)))


def _coffee_table(room: Builder) -> None:
    cx, cy, top = RUG[0], RUG[1], 0.43
    room.add(
        rectangle((cx - RUG[2], cy - RUG[3], 0.012), (2 * RUG[2], 0, 0), (0, 2 * RUG[3], 0), 0.09,
                  paint.kilim(RUG[:2], RUG[2:]), density=4.5)
    )  # fmt: skip
    disc = [(0.0, top - 0.045), (0.54, top - 0.045), (0.585, top - 0.03), (0.59, top - 0.012), (0.575, top)]
    disc += [(r, top + 0.001) for r in (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)]
    room.add(revolution((cx, cy, 0), disc, paint.wood(OAK * 0.9, 0), n=40, density=6, gloss=0.16))
    room.block_ellipsoid((cx, cy, top - 0.025), (0.60, 0.60, 0.03))
    for angle in (0.5, 2.6, 4.7):
        foot = (cx + 0.46 * np.cos(angle), cy + 0.46 * np.sin(angle), 0.01)
        head = (cx + 0.30 * np.cos(angle), cy + 0.30 * np.sin(angle), top - 0.04)
        room.add(rod(foot, head, 0.022, paint.wood(OAK * 0.7, 2)))
    vase = [
        (0.0, 0.0),
        (0.07, 0.0),
        (0.105, 0.06),
        (0.11, 0.11),
        (0.085, 0.17),
        (0.045, 0.215),
        (0.04, 0.235),
        (0.055, 0.25),
    ]
    vx, vy = cx + 0.16, cy + 0.20
    glaze = paint.plain(srgb(36, 92, 140), 0.10, 14.0)
    room.add(revolution((vx, vy, top), vase, glaze, n=28, density=22, gloss=0.22))
    room.block_ellipsoid((vx, vy, top + 0.11), (0.10, 0.10, 0.12))
    _flowers(room, np.array([vx, vy, top + 0.24]))
    bowl = [(0.0, 0.0), (0.05, 0.0), (0.11, 0.03), (0.15, 0.075), (0.142, 0.078), (0.10, 0.035), (0.0, 0.015)]
    bx, by = cx - 0.20, cy + 0.06
    room.add(revolution((bx, by, top), bowl, paint.plain(srgb(232, 226, 214), 0.03), n=28, density=20, gloss=0.10))
    room.block_ellipsoid((bx, by, top + 0.03), (0.13, 0.13, 0.035))
    fruit = ((0.0, 0.055, 0.075), (0.06, -0.03, 0.075), (-0.06, -0.025, 0.075), (0.0, 0.0, 0.135))
    for i, (dx, dy, dz) in enumerate(fruit):
        peel = paint.plain(srgb(236, 132, 28) if i != 1 else srgb(190, 52, 40), 0.10, 60.0)
        room.add(
            cushion((bx + dx, by + dy, top + dz), (0.044, 0.044, 0.042), peel, power=1.0, n=12, density=24, gloss=0.06)
        )
        room.block_ellipsoid((bx + dx, by + dy, top + dz), (0.042, 0.042, 0.04))
    z = top
    for color, (w, d, h), shift in (
        (srgb(40, 70, 90), (0.26, 0.18, 0.032), (0.0, 0.0)), (srgb(214, 178, 110), (0.24, 0.17, 0.026), (0.01, 0.008)),
        (srgb(160, 54, 42), (0.20, 0.15, 0.022), (-0.012, -0.004)),
    ):  # fmt: skip
        x, y = cx + 0.10 + shift[0], cy - 0.28 + shift[1]
        room.box((x - w / 2, y - d / 2, z), (x + w / 2, y + d / 2, z + h), paint.plain(color, 0.06, 30), step=0.06,
                 skip="-z", density=16)  # fmt: skip
        z += h


def _flowers(room: Builder, mouth: np.ndarray) -> None:
    rng = np.random.default_rng(5)
    for _ in range(15):
        angle, lean = rng.uniform(0, 2 * np.pi), rng.uniform(0.03, 0.17)
        tip = mouth + np.array([lean * np.cos(angle), lean * np.sin(angle), rng.uniform(0.12, 0.34)])
        room.add(rod(mouth - [0, 0, 0.05], tip, 0.004, paint.plain(srgb(70, 110, 50)), n=5))
        color = [srgb(244, 230, 210), srgb(232, 120, 96), srgb(248, 196, 84)][int(rng.integers(3))]
        size = rng.uniform(0.026, 0.046)
        petal = paint.plain(color, 0.16, 70.0)
        room.add(cushion(tip, (size, size, 0.7 * size), petal, power=1.0, n=10, density=26, through=0.25))
    for _ in range(12):
        angle = rng.uniform(0, 2 * np.pi)
        room.add(_blade(mouth, angle, rng.uniform(0.10, 0.22), 0.035, 0.6, srgb(74, 120, 56), 22.0))


def _blade(
    root: np.ndarray, angle: float, length: float, width: float, rise: float, color: np.ndarray, density: float
) -> Surface:
    """A leaf that leaves ``root`` towards ``angle``, rises, bends over and comes to a point."""
    s, t = np.linspace(0.02, 1, 8)[:, None], np.linspace(-1, 1, 5)[None, :]
    out = np.array([np.cos(angle), np.sin(angle), 0.0])
    side = np.array([-np.sin(angle), np.cos(angle), 0.0])
    half = width * np.sin(np.pi * np.clip(s, 0.02, 0.98) ** 0.8) ** 0.8
    droop = rise * s - 0.75 * rise * s**2.2
    height = length * droop + 0.25 * half * np.abs(t)
    points = root + length * s[..., None] * out * 0.85 + (half * t)[..., None] * side
    points = points + np.stack([0 * height, 0 * height, height], axis=2)
    return grid(points, paint.leaf(color), (*root[:2], root[2] - 5), density=density, through=0.5, open_edges=False)


def _plant(room: Builder) -> None:
    """A tall plant in the corner, against the light."""
    rng = np.random.default_rng(11)
    x, y = -2.72, 2.78
    pot = [(0.0, 0.0), (0.16, 0.0), (0.21, 0.20), (0.23, 0.38), (0.205, 0.38), (0.19, 0.33), (0.0, 0.33)]
    room.add(revolution((x, y, 0), pot, paint.plain(srgb(196, 104, 66), 0.08, 12), n=28, density=6))
    room.block_box((x - 0.17, y - 0.17, 0), (x + 0.17, y + 0.17, 0.36))
    for _ in range(5):
        top = np.array([x + rng.uniform(-0.22, 0.22), y + rng.uniform(-0.22, 0.15), rng.uniform(1.25, 1.95)])
        base = np.array([x + rng.uniform(-0.05, 0.05), y + rng.uniform(-0.05, 0.05), 0.3])
        room.add(rod(base, top, 0.014, paint.wood(WALNUT * 1.3, 2)))
        for share in np.linspace(0.30, 1.0, 11):
            root = base + share * (top - base)
            color = srgb(62, 118, 52) * rng.uniform(0.7, 1.25)
            length = rng.uniform(0.26, 0.46) * (1.15 - 0.35 * share)
            room.add(_blade(root, rng.uniform(0, 2 * np.pi), length, 0.085, rng.uniform(0.5, 1.3), color, 9.0))
    room.block_ellipsoid((x, y, 1.15), (0.20, 0.20, 0.55))


def _bookshelf(room: Builder) -> None:
    """Against the teal wall, near the windows."""
    (y0, y1, top), x0, x1 = SHELF, 3.64, 3.99
    oak = paint.wood(OAK, 1)
    shelves = np.linspace(0.08, top - 0.03, 6)
    for y in (y0, (y0 + y1) / 2 - 0.015, y1 - 0.03):
        room.add(*box((x0, y, 0), (x1, y + 0.03, top), paint.wood(OAK, 2), skip="+x -z", density=4))
    for z in shelves:
        room.add(*box((x0, y0, z), (x1, y1, z + 0.03), oak, skip="+x", density=4))
    room.add(rectangle((x1 - 0.02, y0, 0), (0, 0, top), (0, y1 - y0, 0), 0.2, paint.wood(OAK * 0.5, 1), density=1.5))
    room.block_box((x0 + 0.12, y0, 0), (x1, y1, top))
    rng = np.random.default_rng(3)
    for i, z in enumerate(shelves[:-1]):
        for j, start in enumerate((y0 + 0.04, (y0 + y1) / 2 + 0.03)):
            length = rng.uniform(0.50, 0.78)
            y = start + rng.uniform(0, max(0.0, 0.78 - length))
            low = (x0 + 0.05, y, z + 0.03)
            spines = paint.books(10 * i + j)
            # u runs along y on the face that looks into the room.
            face = rectangle(low, (0, length, 0), (0, 0, 0.33), 0.08, spines, density=12)
            face.normals = -face.normals
            room.add(face)
    pot = [(0.0, 0.0), (0.06, 0.0), (0.08, 0.10), (0.07, 0.10), (0.0, 0.09)]
    center = np.array([x0 + 0.16, y0 + 0.3, top])
    room.add(revolution(center, pot, paint.plain(srgb(226, 220, 208)), n=20, density=14))
    for _ in range(16):
        blade = _blade(center + np.array([0, 0, 0.09]), rng.uniform(0, 2 * np.pi), rng.uniform(0.16, 0.34), 0.03,
                       rng.uniform(-0.6, 0.9), srgb(84, 140, 70), 16.0)  # fmt: skip
        room.add(blade)


def _lamps(room: Builder) -> None:
    # A paper lantern over the table.
    cx, cy, cz, r = 0.75, -0.25, 2.18, 0.27
    ribs = np.linspace(-np.pi / 2 + 0.08, np.pi / 2 - 0.08, 18)

    def lantern(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        height = (points[:, 2:] - cz) / r
        return np.array([1.05, 0.60, 0.25]) * (0.85 - 0.35 * height) * (1 + 0.06 * np.sin(height * 60))

    profile = [(r * np.cos(a), r * 0.88 * np.sin(a)) for a in ribs]
    room.add(revolution((cx, cy, cz), profile, lantern, n=32, density=5, emits=True))
    room.add(rod((cx, cy, cz + 0.24), (cx, cy, Z), 0.006, paint.plain(srgb(30, 28, 26))))
    ring = np.array([[0.15, 0, 0], [-0.08, 0.13, 0], [-0.08, -0.13, 0], [0, 0, -0.2]])
    room.lamps.append(Lamp(np.array([cx, cy, cz]) + ring, 0.55 * LAMP_GLOW))
    # A standing lamp at the sofa's end, and a small one on the sideboard.
    for x, y, foot, z0, z1, r0, r1, power in (
        (3.45, -2.35, 0.0, 1.42, 1.74, 0.24, 0.17, 0.75), (-1.0, -3.2, 0.80, 1.16, 1.38, 0.16, 0.11, 0.35),
    ):  # fmt: skip

        def shade(points: np.ndarray, uv: np.ndarray, blur: float, low=z0, high=z1) -> np.ndarray:
            place = (points[:, 2:] - low) / (high - low)
            return np.array([1.2, 0.66, 0.26]) * (0.55 + 0.75 * np.exp(-(((place - 0.45) / 0.4) ** 2)))

        heights = np.linspace(0, 1, 8)
        profile = [(r0 + (r1 - r0) * h, z0 + (z1 - z0) * h) for h in heights]
        room.add(revolution((x, y, 0), profile, shade, n=28, density=5, emits=True))
        brass = paint.plain(srgb(150, 112, 60), 0.05)
        room.add(rod((x, y, foot), (x, y, z0 + 0.05), 0.012, brass))
        base = [(0.0, foot + 0.025), (0.13, foot + 0.02), (0.14, foot)][::-1]
        room.add(revolution((x, y, 0), base, brass, n=24, density=8, gloss=0.15))
        middle = (z0 + z1) / 2
        points = np.array([[x, y, middle], [x, y, z1 + 0.08], [x, y, z0 - 0.08]])
        room.lamps.append(Lamp(points, power * LAMP_GLOW))


def _pictures(room: Builder) -> None:
    """On the teal wall, the -x wall and the -y wall."""
    for kind, along, height, w, h, wall in FRAMES:
        picture = paint.painting(kind, w, h)
        rim, deep = 0.035, 0.03
        if wall == "-y":
            place, u, into = np.array([along - w / 2, -Y + deep, height - h / 2]), np.array([1.0, 0, 0]), -1.0
        else:
            sign = 1.0 if wall == "+x" else -1.0
            # u runs to the right as seen from inside the room.
            u = np.array([0, -sign, 0])
            place, into = np.array([sign * (X - deep), along + sign * w / 2, height - h / 2]), sign
        face = rectangle(place, u * w, (0, 0, h), 0.09, picture, density=26 if wall == "+x" else 9, gloss=0.03)
        inward = np.array([0, 1.0, 0]) if wall == "-y" else np.array([-into, 0, 0])
        face.normals = np.broadcast_to(inward, face.normals.shape).copy()
        room.add(face)
        black = paint.wood(srgb(48, 36, 28), 2)
        for a0, a1, b0, b1 in (
            (-rim, w + rim, -rim, 0),
            (-rim, w + rim, h, h + rim),
            (-rim, 0, 0, h),
            (w, w + rim, 0, h),
        ):
            p = place + u * a0 + np.array([0, 0, b0]) - deep * inward
            q = place + u * a1 + np.array([0, 0, b1]) + 0.012 * inward
            room.add(*box(np.minimum(p, q), np.maximum(p, q), black, step=0.15, density=10))


def _sideboard(room: Builder) -> None:
    """Low, along the -y wall, and a door in the -x wall."""
    low, high = (-1.5, -3.48, 0.16), (1.2, -3.02, 0.80)
    room.box(low, high, paint.wood(WALNUT * 1.35, 0), step=0.12, skip="-y -z", density=3, gloss=0.06)
    for x in (-1.35, 1.05):
        room.add(*box((x, -3.40, 0), (x + 0.04, -3.10, 0.16), paint.wood(WALNUT, 2), density=3))
    for x in (-0.6, 0.3):
        room.add(
            rectangle((x, -3.018, 0.2), (0, 0, 0.56), (0.012, 0, 0), 0.1, paint.plain(srgb(20, 16, 12)), density=14)
        )
    jar = [(0.0, 0.0), (0.08, 0.0), (0.10, 0.10), (0.07, 0.20), (0.03, 0.26), (0.04, 0.28)]
    room.add(revolution((0.55, -3.25, 0.80), jar, paint.plain(srgb(210, 200, 184), 0.05), n=24, density=16, gloss=0.1))
    white = paint.plain(WHITE * 0.95, 0.02)
    room.add(*box((-X, -2.9, 0), (-X + 0.035, -1.95, 2.1), white, step=0.2, skip="-x -z", density=1.2, gloss=0.03))
