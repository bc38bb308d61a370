"""Depth pictures of the same scene: the table rising towards the camera, the object before it."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from headrace.testing.picture import View, seeded
from headrace.testing.tag import Tag, draw_tag

__all__ = ["DepthScene"]

_VARIANTS = 2  # of the noise, taken in turn
_FAR, _NEAR = 1600, 500  # millimetres, at the upper and lower edge


class DepthScene:
    """One depth camera's view of one episode; millimetres as uint16 or metres as float32."""

    def __init__(self, view: View, seed: int, episode: int, dtype: str = "uint16") -> None:
        self._view, self._episode, self._dtype = view, episode, dtype
        rng = seeded(seed, view.dataset, episode, view.camera, 5)
        height, width = view.height, view.width
        bumps = cv2.resize(
            rng.normal(0, 60, (5, 7)), (width, height), interpolation=cv2.INTER_CUBIC
        )
        plane = np.linspace(_FAR, _NEAR, height)[:, None] + bumps
        noise = rng.normal(0, 1.2, (_VARIANTS, height, width))
        depth = np.rint(np.clip(plane + noise, 250, 2200))
        self._variants: npt.NDArray[np.uint16] = depth.astype(np.uint16)

    def frame(self, step: int, place: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """The depth [height, width] at a step, with the object at `place`."""
        view = self._view
        image: npt.NDArray[Any] = self._variants[step % _VARIANTS].copy()
        centre = round(float(place[0]) * view.width), round(float(place[1]) * view.height)
        near = int(_FAR + (_NEAR - _FAR) * float(place[1]) - 120 - 300 * float(place[2]))
        cv2.circle(image, centre, max(2, round(0.05 * min(image.shape))), near, -1)
        draw_tag(image, Tag(view.number, self._episode, step, view.camera), 400, 1600)
        if self._dtype == "uint16":
            return image
        metres: npt.NDArray[np.float32] = image.astype(np.float32) / np.float32(1024)
        return metres  # with few bits of mantissa, which packs well
