"""What the delivery bench offers to outputs."""

from __future__ import annotations

from typing import List, Tuple

import cv2
import numpy as np


def pictures(width: int, height: int, n: int) -> List[np.ndarray]:
    """``n`` pictures that go round: (height, width, 3) uint8 BGR, always the same.

    What costs an encoder time is in them: smooth gradients, fine texture, edges, and soft shapes that move.
    """
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None] + np.zeros((1, width), np.float32)
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :] + np.zeros((height, 1), np.float32)
    texture = np.random.default_rng(1).normal(0.0, 1.0, (height, width, 1)).astype(np.float32)
    texture = cv2.GaussianBlur(texture, (0, 0), 1.5)[..., None] * 20.0
    ground = np.stack([90 + 110 * y, 60 + 90 * x, 150 - 100 * x * y], axis=-1)
    images = []
    for index in range(n):
        sway = 2 * np.pi * index / n
        shift = round(height / 120 * np.sin(sway)), round(width / 213 * np.cos(sway))
        image = ground + np.roll(texture, shift, (0, 1))  # a camera's motion moves all of the picture
        for k in range(24):  # soft discs, as splats are, each on a circle of its own
            turn = 2 * np.pi * (index / n + k * 0.381966)
            middle = 0.5 + (0.1 + 0.015 * k) * np.array([np.cos(turn), np.sin(turn)])
            sigma = height * (0.01 + 0.004 * (k % 7))
            colour = (40 + 37 * (k % 6), 230 - 29 * (k % 7), 60 + 23 * (k % 8))
            _draw_disc(image, middle * (width, height), sigma, colour)
        picture = np.clip(np.rint(image), 0, 255).astype(np.uint8)
        left = round(width * (0.1 + 0.05 * index))
        corner = (left + max(1, width // 8), round(height * 0.9))
        cv2.rectangle(picture, (left, round(height * 0.75)), corner, (235, 240, 245), -1)
        cv2.putText(picture, f"{index}", (left, round(height * 0.88)), 0, height / 240, (20, 20, 30), 2)
        images.append(picture)
    return images


def _draw_disc(image: np.ndarray, middle: np.ndarray, sigma: float, colour: Tuple[float, ...]) -> None:
    reach = int(4 * sigma) + 1
    left, top = (max(0, int(at) - reach) for at in middle)
    part = image[top : int(middle[1]) + reach + 1, left : int(middle[0]) + reach + 1]
    y, x = np.mgrid[0 : part.shape[0], 0 : part.shape[1]].astype(np.float32)
    distance2 = (x + left - middle[0]) ** 2 + (y + top - middle[1]) ** 2
    weight = 0.8 * np.exp(-distance2 / (2 * sigma * sigma))[..., None]
    part += weight * (np.array(colour, np.float32) - part)
