"""Encoding one picture."""

from __future__ import annotations

import cv2
import numpy as np

from edgegs.errors import OutputError


def encode(image: np.ndarray, suffix: str, quality: int = 90) -> bytes:
    """Encode (height, width, 3) uint8 BGR as ``.png`` (lossless, fastest level) or ``.jpg`` of ``quality``.

    Raises:
        OutputError: OpenCV could not.
    """
    png = suffix.lower() == ".png"
    parameters = [cv2.IMWRITE_PNG_COMPRESSION, 1] if png else [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, data = cv2.imencode(suffix, image, parameters)
    if not done:
        raise OutputError(f"OpenCV could not encode a {suffix} picture of shape {image.shape}")
    return data.tobytes()
