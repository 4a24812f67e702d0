"""Pictures at the size of the render: what is cut, what is black, what is stretched, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from edgegs.capture.fit import FITS, as_bgr, cover_crop, fit


def coordinates(width, height):
    """A picture whose blue is its column and whose green is its row."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.dstack([columns, rows, np.full_like(rows, 255)]).astype(np.uint8)


@pytest.mark.parametrize(
    ("size", "wanted", "crop"),
    [
        ((1920, 1080), (1280, 720), (0, 0, 1920, 1080)),
        ((1920, 1080), (640, 480), (240, 0, 1440, 1080)),
        ((640, 480), (1280, 720), (0, 60, 640, 360)),
        ((640, 480), (863, 480), (0, 62, 640, 356)),
        ((100, 100), (1, 3), (33, 0, 33, 100)),
        ((3, 1000), (7, 7), (0, 498, 3, 3)),
        ((1, 1), (4096, 1), (0, 0, 1, 1)),
        ((5, 1), (1, 4096), (2, 0, 1, 1)),
    ],
)
def test_cover_crop(size, wanted, crop):
    assert cover_crop(size, wanted) == crop


def test_crop_is_inside_central_and_of_the_aspect():
    random = np.random.default_rng(4)
    for _ in range(500):
        width, height, wanted_width, wanted_height = (int(side) for side in random.integers(1, 2000, 4))
        x, y, w, h = cover_crop((width, height), (wanted_width, wanted_height))
        assert w == width or h == height
        for start, part, whole in ((x, w, width), (y, h, height)):
            assert start >= 0
            assert part >= 1
            assert 0 <= whole - part - 2 * start <= 1
        # half a pixel off the exact side at most
        exact_w, exact_h = h * wanted_width / wanted_height, w * wanted_height / wanted_width
        assert abs(w - exact_w) <= 0.5 or abs(h - exact_h) <= 0.5 or 1 in (w, h)


def test_same_size_is_the_picture_itself():
    image = coordinates(40, 30)
    for how in FITS:
        got = fit(image, 40, 30, how)
        assert np.shares_memory(got, image)
        assert (got == image).all()
    strided = coordinates(40, 60)[::2]
    got = fit(strided, 40, 30, "cover")
    assert got.flags.c_contiguous
    assert (got == strided).all()


def test_cover_crops_without_scaling():
    image = coordinates(40, 30)
    got = fit(image, 20, 30, "cover")
    assert got.flags.c_contiguous
    assert (got == image[:, 10:30]).all()
    assert (fit(image, 40, 10, "cover") == image[10:20]).all()


def test_contain_leaves_black_bars():
    image = coordinates(40, 30)
    wide = fit(image, 60, 30, "contain")
    assert (wide[:, 10:50] == image).all()
    assert not wide[:, :10].any()
    assert not wide[:, 50:].any()
    high = fit(image, 40, 37, "contain")  # an odd rest: the lower bar is the larger
    assert (high[3:33] == image).all()
    assert not high[:3].any()
    assert not high[33:].any()


def test_scaling_averages_blocks_and_keeps_corners():
    image = coordinates(80, 60)
    half = fit(image, 40, 30, "cover")
    blocks = image.reshape(30, 2, 40, 2, 3).astype(int).sum(axis=(1, 3))
    assert np.abs(half.astype(int) - blocks / 4).max() <= 0.5
    large = fit(image, 160, 120, "cover")
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        assert (large[row, column] == image[row, column]).all()
    boxed = fit(image, 100, 30, "contain")
    assert (boxed[:, 30:70] == half).all()


def test_stretch_takes_all_of_the_picture():
    image = coordinates(80, 60)
    got = fit(image, 40, 120, "stretch")  # shrunk across, enlarged down
    assert got.shape == (120, 40, 3)
    assert np.abs(got[0, :, 0].astype(int) - np.arange(0.5, 80, 2)).max() <= 0.5
    assert (got[0, :, 1] == 0).all()
    assert (got[-1, :, 1] == 59).all()


@pytest.mark.parametrize("how", FITS)
@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (7, 5), (641, 2)])
@pytest.mark.parametrize("wanted", [(1, 1), (16, 1), (1, 16), (33, 31)])
def test_any_size_to_any(how, size, wanted):
    got = fit(np.full((size[1], size[0], 3), 77, np.uint8), *wanted, how)
    assert got.shape == (wanted[1], wanted[0], 3)
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert set(np.unique(got)) <= ({0, 77} if how == "contain" else {77})
    assert 77 in got


@pytest.mark.parametrize("size", [(40, 30), (41, 31), (53, 40), (79, 59), (80, 60), (200, 150), (317, 241)])
def test_positions_are_kept_at_any_scale(size):
    """A ramp stays a ramp: pixel centres meet, to a pixel of the coarser picture. A shift by half a pixel fails."""
    width, height = 40, 30
    ramp = np.linspace(0, 250, size[0]).astype(np.float64)
    image = np.broadcast_to(ramp.round().astype(np.uint8)[None, :, None], (size[1], size[0], 3)).copy()
    got = fit(image, width, height, "stretch")
    centres = (np.arange(width) + 0.5) * size[0] / width - 0.5
    want = np.interp(centres, np.arange(size[0]), ramp)
    assert np.abs(got[:, :, 0] - want).max() <= 1.5  # rounded twice; half a pixel of the result is 3.1


def test_nothing_is_overlooked_when_shrinking():
    """Thin bright lines dim, but each keeps half its light or more, however much the picture shrinks."""
    for size in (41, 53, 60, 61, 79, 80, 160, 320):
        for column in range(size):
            image = np.zeros((30, size, 3), np.uint8)
            image[:, column] = 255
            total = fit(image, 40, 30, "stretch")[0, :, 0].astype(int).sum()
            assert total * size / 40 > 0.45 * 255, (size, column)


def test_unknown_fit():
    with pytest.raises(ValueError, match="'fill' is not one of cover, contain, stretch"):
        fit(coordinates(4, 4), 2, 2, "fill")


def test_channels():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for image in (grey, grey[:, :, None]):
        assert (as_bgr(image) == grey[:, :, None]).all()
        assert as_bgr(image).shape == (3, 4, 3)
    colour = coordinates(4, 3)
    assert as_bgr(colour) is colour
    assert (as_bgr(np.dstack([colour, grey])) == colour).all()
    for wrong in (grey.astype(np.uint16), np.zeros((3, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8), grey[0]):
        with pytest.raises(ValueError, match="pictures of shape"):
            as_bgr(wrong)
