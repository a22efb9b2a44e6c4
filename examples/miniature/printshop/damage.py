"""Image degradations of known kind and strength: blur, noise and JPEG-like block artefacts."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from local_bench.suites.printshop.scene import Pixels

STRENGTHS = (1, 2, 3, 4)
_SIGMA_PX = (0.8, 1.4, 2.2, 3.4)
_SIGMA_LEVELS = (8.0, 18.0, 34.0, 60.0)
_STEP_LEVELS = (60.0, 130.0, 260.0, 480.0)
_BLOCK_PX = 8

Levels = NDArray[np.float64]


def damage(pixels: Pixels, kind: str, strength: int, rng: np.random.Generator) -> Pixels:
    """Degrade an image: `kind` is one of KINDS, `strength` from 1 (barely visible) to 4 (figures hardly
    recognisable)."""
    assert strength in STRENGTHS, strength
    levels = KINDS[kind](pixels.astype(np.float64), strength - 1, rng)
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


def psnr_db(pixels: Pixels, other: Pixels) -> float:
    """Peak signal-to-noise ratio of two images of equal size, in decibels; infinite for equal images."""
    error = float(((pixels.astype(np.float64) - other) ** 2).mean())
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def _blur(levels: Levels, at: int, rng: np.random.Generator) -> Levels:
    """Gaussian blur; sigma in pixels varies by 10 %."""
    sigma = _SIGMA_PX[at] * rng.uniform(0.9, 1.1)
    blurred: Levels = ndimage.gaussian_filter(levels, (sigma, sigma, 0), mode="nearest")
    return blurred


def _noise(levels: Levels, at: int, rng: np.random.Generator) -> Levels:
    """Gaussian noise, independent per channel."""
    return levels + rng.normal(0, _SIGMA_LEVELS[at], levels.shape)


def _blocks(levels: Levels, at: int, rng: np.random.Generator) -> Levels:
    """Quantise the DCT of 8x8 blocks with steps that grow with frequency, as JPEG does, on a grid with random
    offset."""
    down, right = (int(v) for v in rng.integers(0, _BLOCK_PX, 2))
    n, m, _ = levels.shape
    padded = np.pad(levels - 128, ((down, -(down + n) % _BLOCK_PX), (right, -(right + m) % _BLOCK_PX), (0, 0)), "edge")
    rows, columns = padded.shape[0] // _BLOCK_PX, padded.shape[1] // _BLOCK_PX
    blocks = padded.reshape(rows, _BLOCK_PX, columns, _BLOCK_PX, 3).transpose(0, 2, 4, 1, 3)  # [R, C, 3, 8, 8]
    basis = _dct()
    steps = _STEP_LEVELS[at] * (0.25 + np.add.outer(np.arange(_BLOCK_PX), np.arange(_BLOCK_PX)) / 8)
    quantised = np.rint((basis @ blocks @ basis.T) / steps) * steps
    quantised[..., 0, 0] = (basis @ blocks @ basis.T)[..., 0, 0]
    out: Levels = (basis.T @ quantised @ basis).transpose(0, 3, 1, 4, 2).reshape(padded.shape) + 128
    return out[down : down + n, right : right + m]


@cache
def _dct() -> Levels:
    """The orthonormal DCT-II of 8 samples, as a matrix."""
    k, x = np.mgrid[0:_BLOCK_PX, 0:_BLOCK_PX]
    basis: Levels = np.cos(np.pi * (2 * x + 1) * k / (2 * _BLOCK_PX)) * np.sqrt(2 / _BLOCK_PX)
    basis[0] /= np.sqrt(2)
    return basis


KINDS: dict[str, Callable[[Levels, int, np.random.Generator], Levels]] = {
    "blur": _blur,
    "noise": _noise,
    "blocks": _blocks,
}


def enlarged(pixels: Pixels, times: int = 2) -> Pixels:
    """Enlarge by repeating every pixel `times` x `times`."""
    return pixels.repeat(times, 0).repeat(times, 1)
