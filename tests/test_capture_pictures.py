"""A picture file as live picture: replaced and removed, read upright, and pictures that mean harm."""

from __future__ import annotations

import io
import os
import resource
import struct
import zlib

import cv2
import numpy as np
import pytest
from capture_support import FakeTime, file_uri

from edgegs.capture import sources as module
from edgegs.capture.sources import PictureSource, decode, picture_size
from edgegs.errors import InputError


def encoded(image, suffix=".png"):
    done, data = cv2.imencode(suffix, image)
    assert done
    return data.tobytes()


def test_picture_is_read_again_when_it_changes(tmp_path):
    time = FakeTime()
    path, other = tmp_path / "a.png", tmp_path / "b.png"
    first = np.random.default_rng(2).integers(0, 256, (30, 40, 3), np.uint8)
    path.write_bytes(encoded(first))
    source = PictureSource(file_uri(path, "picture"), time.timing)
    source.open()
    before = time.time
    assert (source.read() == first).all()
    assert time.time == before
    assert [source.read() for _ in range(3)] == [None] * 3
    assert time.time == before + 3 * module.LOOK_S
    other.write_bytes(encoded(255 - first))
    os.replace(str(other), str(path))
    assert (source.read() == 255 - first).all()
    assert source.read() is None
    path.write_bytes(encoded(first))  # in place
    os.utime(str(path), ns=(1, 1))  # backwards, too: any change counts
    assert (source.read() == first).all()
    time.closing = True
    assert source.read() is None


def test_picture_removed_and_back(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(np.full((48, 64, 3), 99, np.uint8), ".jpg"))
    source = PictureSource(file_uri(path, "picture"), FakeTime().timing)
    source.open()
    assert source.read() is not None
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        source.read()
    source.close()
    path.write_bytes(data)
    source.open()
    assert abs(int(source.read().mean()) - 99) <= 1


def test_upright_by_exif(tmp_path):
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # Orientation 6: turn right
    data = encoded(np.zeros((16, 32, 3), np.uint8), ".jpg")
    data = data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]
    assert picture_size(data) == (32, 16)
    assert decode(data, "x").shape == (32, 16, 3)


def test_grey_and_transparent_pictures():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert (decode(encoded(grey), "x") == grey[:, :, None]).all()
    colour = np.dstack([grey, grey + 1, grey + 2, np.full_like(grey, 255)])
    assert (decode(encoded(colour), "x") == colour[:, :, :3]).all()
    deep = np.full((3, 4, 3), 0x8080, np.uint16)
    assert decode(encoded(deep), "x").dtype == np.uint8


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_size_from_the_header(suffix):
    for width, height in ((1, 1), (7, 300), (1000, 2)):
        assert picture_size(encoded(np.zeros((height, width, 3), np.uint8), suffix)) == (width, height)
    done, data = cv2.imencode(".jpg", np.zeros((9, 8, 3), np.uint8), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    assert done
    assert picture_size(data.tobytes()) == (8, 9)


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height):
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = png_chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + png_chunk(b"IEND", b"")


def jpeg(width, height):
    return encoded(np.zeros((8, 8, 3), np.uint8), ".jpg").replace(
        struct.pack(">BHH", 8, 8, 8), struct.pack(">BHH", 8, height, width), 1
    )


def bmp():
    done, data = cv2.imencode(".bmp", np.zeros((4, 4, 3), np.uint8))
    assert done
    return data.tobytes()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (png(100000, 100000), "100000 x 100000 pixels are too many"),
        (png(2**32 - 1, 2**32 - 1), "pixels are too many"),
        (png(8193, 8192), "8193 x 8192 pixels are too many"),
        (jpeg(65535, 65535), "65535 x 65535 pixels are too many"),
        (png(0, 5), "neither PNG nor JPEG, or a damaged one"),
        (jpeg(5, 0), "neither PNG nor JPEG, or a damaged one"),
        (b"", "neither PNG nor JPEG"),
        (b"\xff\xd8", "neither PNG nor JPEG"),
        (b"\xff\xd8" + b"\xff\xe0\x00\x00" * 50000, "neither PNG nor JPEG"),
        (b"\xff\xd8" + b"\xff" * 100000, "neither PNG nor JPEG"),
        (bmp(), "neither PNG nor JPEG"),
        (jpeg(8, 8)[:-2], "the picture is incomplete; rename a complete one to this name"),
        (png(8, 8)[:-8], "the picture is incomplete"),
        (png(8, 8)[:30] + b"IEND", "the picture is damaged; save it again"),
    ],
)
def test_hostile_pictures(tmp_path, data, says, capfd):
    path = tmp_path / "a.png"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = PictureSource(file_uri(path, "picture"), FakeTime().timing)
    source.open()
    with pytest.raises(InputError) as caught:
        source.read()
    assert str(caught.value).startswith(f"background file://{path}: ")
    assert says in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_sparse_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    path = tmp_path / "a.png"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    source = PictureSource(file_uri(path, "picture"), FakeTime().timing)
    source.open()
    with pytest.raises(InputError, match="more than 1 MiB; scale the picture down"):
        source.read()


def test_any_header_is_survived():
    random = np.random.default_rng(3)
    whole = [encoded(np.zeros((9, 8, 3), np.uint8), suffix) for suffix in (".png", ".jpg")]
    for data in whole:
        for cut in range(64):
            picture_size(data[:cut])
        for _ in range(500):
            changed = bytearray(data)
            for at in random.integers(2, 200 if len(data) > 200 else len(data), 3):
                changed[int(at)] = int(random.integers(256))
            picture_size(bytes(changed))


def test_state_is_the_descriptors(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    with io.FileIO(str(path)) as file:
        before = module._state(file)
        os.replace(str(path), str(tmp_path / "b"))
        path.write_bytes(b"1")
        assert module._state(file) == before
    with io.FileIO(str(path)) as file:
        assert module._state(file) != before
