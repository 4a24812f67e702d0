"""``v4l2://``: numbers and structures against the kernel's header, and the conversion to YUYV and I420."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from images import psnr
from v4l2_support import PSNR_DB, c_compiler, decode, picture

from edgegs.sinks import v4l2_api
from edgegs.sinks.v4l2 import I420, Yuyv

HEADER = r"""
#include <linux/videodev2.h>
#include <stddef.h>
#include <stdio.h>
#define NUMBER(name) printf(#name " %llu\n", (unsigned long long)(name));
#define FIELD(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field));
int main(void) {
    NUMBER(VIDIOC_QUERYCAP) NUMBER(VIDIOC_ENUM_FMT) NUMBER(VIDIOC_S_FMT) NUMBER(VIDIOC_STREAMON) NUMBER(VIDIOC_S_PARM)
    NUMBER(VIDIOC_ENUM_FRAMESIZES)
    NUMBER(sizeof(struct v4l2_capability)) NUMBER(sizeof(struct v4l2_format)) NUMBER(sizeof(struct v4l2_streamparm))
    NUMBER(sizeof(struct v4l2_fmtdesc)) NUMBER(sizeof(struct v4l2_frmsizeenum)) NUMBER(sizeof(struct v4l2_pix_format))
    FIELD(v4l2_capability, capabilities) FIELD(v4l2_capability, device_caps) FIELD(v4l2_format, fmt.pix)
    FIELD(v4l2_pix_format, colorspace) FIELD(v4l2_pix_format, priv) FIELD(v4l2_pix_format, ycbcr_enc)
    FIELD(v4l2_pix_format, quantization) FIELD(v4l2_pix_format, xfer_func)
    FIELD(v4l2_streamparm, parm.output.timeperframe) FIELD(v4l2_fmtdesc, pixelformat)
    FIELD(v4l2_frmsizeenum, discrete.width) FIELD(v4l2_frmsizeenum, stepwise.max_width)
    FIELD(v4l2_frmsizeenum, stepwise.max_height)
    NUMBER(V4L2_CAP_VIDEO_CAPTURE) NUMBER(V4L2_CAP_VIDEO_OUTPUT) NUMBER(V4L2_CAP_VIDEO_CAPTURE_MPLANE)
    NUMBER(V4L2_CAP_VIDEO_M2M_MPLANE) NUMBER(V4L2_CAP_VIDEO_M2M) NUMBER(V4L2_CAP_DEVICE_CAPS)
    NUMBER(V4L2_PIX_FMT_YUYV) NUMBER(V4L2_PIX_FMT_YUV420) NUMBER(V4L2_PIX_FMT_PRIV_MAGIC)
    NUMBER(V4L2_BUF_TYPE_VIDEO_CAPTURE) NUMBER(V4L2_BUF_TYPE_VIDEO_OUTPUT) NUMBER(V4L2_FIELD_NONE)
    NUMBER(V4L2_COLORSPACE_SRGB) NUMBER(V4L2_YCBCR_ENC_601) NUMBER(V4L2_QUANTIZATION_LIM_RANGE)
    NUMBER(V4L2_XFER_FUNC_SRGB) NUMBER(V4L2_FRMSIZE_TYPE_DISCRETE)
    return 0;
}
"""


def test_numbers_and_structures_are_the_kernels(tmp_path):
    compiler = c_compiler()
    (tmp_path / "header.c").write_text(HEADER)
    subprocess.run([compiler, "header.c", "-o", "header"], cwd=str(tmp_path), check=True, timeout=60)
    text = subprocess.run([str(tmp_path / "header")], stdout=subprocess.PIPE, check=True, timeout=10).stdout.decode()
    wanted = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in text.splitlines()}
    api, fmt, parm, sizes = v4l2_api, v4l2_api.Format, v4l2_api.StreamParm, v4l2_api.FrmSizeEnum
    structures = {
        "v4l2_capability": api.Capability,
        "v4l2_format": fmt,
        "v4l2_streamparm": parm,
        "v4l2_fmtdesc": api.FmtDesc,
        "v4l2_frmsizeenum": sizes,
        "v4l2_pix_format": api.PixFormat,
    }
    ours = {f"sizeof(struct {name})": ctypes.sizeof(structure) for name, structure in structures.items()}
    ours.update(
        {
            "v4l2_capability.capabilities": api.Capability.capabilities.offset,
            "v4l2_capability.device_caps": api.Capability.device_caps.offset,
            "v4l2_format.fmt.pix": fmt.fmt.offset,
            "v4l2_streamparm.parm.output.timeperframe": parm.parm.offset + api.OutputParm.timeperframe.offset,
            "v4l2_fmtdesc.pixelformat": api.FmtDesc.pixelformat.offset,
            "v4l2_frmsizeenum.discrete.width": sizes.size.offset,
            "v4l2_frmsizeenum.stepwise.max_width": sizes.size.offset + 4,
            "v4l2_frmsizeenum.stepwise.max_height": sizes.size.offset + 16,
            "V4L2_BUF_TYPE_VIDEO_CAPTURE": api.CAPTURE,
            "V4L2_BUF_TYPE_VIDEO_OUTPUT": api.OUTPUT,
        }
    )
    for name in ("colorspace", "priv", "ycbcr_enc", "quantization", "xfer_func"):
        ours["v4l2_pix_format." + name] = getattr(api.PixFormat, name).offset
    for name in set(wanted) - set(ours):
        ours[name] = getattr(api, name.replace("VIDIOC_", "").replace("V4L2_", ""))
    assert ours == wanted


@pytest.mark.parametrize(("pixel_format", "converter"), [("yuyv", Yuyv), ("i420", I420)])
@pytest.mark.parametrize("size", [(64, 48), (70, 46), (2, 2), (1280, 720)])
def test_conversion_there_and_back(pixel_format, converter, size):
    width, height = size
    convert = converter(width, height).convert
    data = convert(picture(0, width, height))
    assert len(data) == width * height * (4 if pixel_format == "yuyv" else 3) // 2
    if width > 2:
        assert psnr(decode(data, pixel_format, width, height), picture(0, width, height)) > PSNR_DB
        assert psnr(decode(data, pixel_format, width, height), picture(2, width, height)) < PSNR_DB
    # BT.601, limited range, to the letter: Y 16..235, U and V about 128.
    colours = {(0, 0, 0): (16, 128, 128), (255, 255, 255): (235, 128, 128), (0, 0, 255): (82, 90, 240)}
    for colour, expected in colours.items():
        flat = np.frombuffer(convert(np.full((height, width, 3), colour, np.uint8)), np.uint8)
        n = width * height
        got = flat[[0, 1, 3]] if pixel_format == "yuyv" else flat[[0, n, n + n // 4]]
        assert np.abs(got.astype(int) - expected).max() <= 1


def test_yuyv_is_i420_with_each_colour_in_two_rows():
    image = np.random.default_rng(3).integers(0, 256, (46, 70, 3), np.uint8)
    planes = np.frombuffer(I420(70, 46).convert(image), np.uint8)
    packed = np.frombuffer(Yuyv(70, 46).convert(image), np.uint8).reshape(46, 70, 2)
    assert np.array_equal(packed[..., 0].reshape(-1), planes[: 46 * 70])
    u, v = planes[46 * 70 :].reshape(2, 23, 35)
    for rows in (packed[0::2], packed[1::2]):
        assert np.array_equal(rows[:, 0::2, 1], u)
        assert np.array_equal(rows[:, 1::2, 1], v)


@pytest.mark.parametrize("converter", [Yuyv, I420])
def test_no_new_buffer_for_a_frame(converter):
    one = converter(64, 48)
    first, second = one.convert(picture(0)), one.convert(picture(1))
    assert first is second is one.data
    assert bytes(first) != bytes(converter(64, 48).convert(picture(0)))
