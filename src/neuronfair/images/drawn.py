"""Drawn pictures with a planted attribute, for demonstrations and tests where there are no photographs.

A face is a disc with eyes and a mouth, anything else is stripes and boxes. Its attribute is its colour cast: warm
pictures have a little more red than blue, cool ones the other way round.
"""

from __future__ import annotations

import numpy as np
import torch

from neuronfair.images.archive import SIDE, Pictures

CAST = (4, 14)  # grey levels by which red and blue are moved, at least and at most


def drawn_pictures(faces: int, others: int, *, side: int = SIDE, seed: int = 0) -> Pictures:
    """Draw faces and other things, half of them warm and half cool."""
    rng = np.random.default_rng(seed)
    is_face = np.arange(faces + others) < faces
    warm = rng.random(faces + others) < 0.5
    grey = np.stack([_face(rng, side) if face else _thing(rng, side) for face in is_face])
    cast = rng.integers(*CAST, len(grey)) * np.where(warm, 1, -1)
    colours = np.stack([grey + cast[:, None, None], grey, grey - cast[:, None, None]], 1)
    noise = rng.normal(0, 3, colours.shape)
    pixels = np.clip(np.round(colours + noise), 0, 255).astype(np.uint8)
    return Pictures(
        "drawn",
        torch.from_numpy(pixels),
        tuple(f"{'face' if face else 'thing'}{i:05d}.png" for i, face in enumerate(is_face)),
        {"cast": ["warm" if w else "cool" for w in warm]},
        torch.from_numpy(is_face),
    )


def _face(rng: np.random.Generator, side: int) -> np.ndarray:
    """Return the grey levels of a disc with two eyes and a mouth, before a plain ground: (side, side)."""
    y, x = np.mgrid[0:side, 0:side] / side
    cx, cy = rng.uniform(0.44, 0.56, 2)
    radius = rng.uniform(0.28, 0.38)
    u, v = (x - cx) / radius, (y - cy) / (radius * rng.uniform(1.05, 1.25))
    skin, dark = rng.uniform(120, 200), rng.uniform(25, 70)
    picture = np.full((side, side), rng.uniform(30, 225))
    picture[u**2 + v**2 < 1] = skin
    for eye in (-0.4, 0.4):
        picture[(u - eye) ** 2 + (v + 0.25) ** 2 < 0.018] = dark
    picture[(np.abs(u) < 0.38) & (np.abs(v - 0.45 - 0.25 * u**2 * rng.uniform(-1, 1)) < 0.07)] = dark
    return picture


def _thing(rng: np.random.Generator, side: int) -> np.ndarray:
    """Return the grey levels of stripes and a few boxes: (side, side)."""
    y, x = np.mgrid[0:side, 0:side] / side
    angle, waves = rng.uniform(0, np.pi), rng.uniform(1, 6)
    middle, height = rng.uniform(80, 170), rng.uniform(10, 60)
    wave = np.sign(np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle))))
    picture: np.ndarray = middle + height * wave
    for _ in range(int(rng.integers(1, 4))):
        top, left = rng.integers(0, side * 3 // 4, 2)
        tall, wide = rng.integers(side // 8, side // 2, 2)
        picture[top : top + tall, left : left + wide] = rng.uniform(20, 230)
    return picture
