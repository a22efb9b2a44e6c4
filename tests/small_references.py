"""Qwen's editors bring every image to 1 megapixel: in tests to 64 x 64, or each image would take seconds."""

from collections.abc import Callable
from typing import Any

AREA = 64 * 64


def small_references(change: Callable[[Any, str, Any], None]) -> None:
    """Change the sizes in diffusers by `change(owner, name, value)`: `setattr`, or that of pytest's monkeypatch."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as edit
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint as inpaint
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

    usual = plus.calculate_dimensions
    for pipeline in (edit, inpaint):
        change(pipeline, "calculate_dimensions", lambda area, ratio: (*usual(min(area, AREA), ratio), None))
    change(plus, "VAE_IMAGE_SIZE", AREA)
    change(plus, "CONDITION_IMAGE_SIZE", AREA)
