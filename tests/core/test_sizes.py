"""The size that an order's rules require of a model."""

import pytest

from local_bench.core.hardrules import VisualSpecs, size_by_rules

AREA = 1024 * 1024


@pytest.mark.parametrize(
    ("specs", "size"),
    [
        ({}, None),
        ({"min_dpi": 300}, None),
        ({"width_px": 800}, None),
        ({"width_px": 800, "height_px": 608}, (608, 800)),  # as it is
        ({"min_width_px": 800, "min_height_px": 608}, (608, 800)),
        ({"width_px": 1080, "height_px": 1080}, (1024, 1024)),  # more than the model makes
        ({"width_px": 100, "height_px": 50}, (720, 1456)),  # no multiple of 16
        ({"width_px": 512, "height_px": 512, "aspect_ratio": "2:1"}, (512, 512)),
        ({"aspect_ratio": "1:1.4"}, (1216, 864)),
        ({"aspect_ratio": "portrait"}, (1184, 880)),
        ({"aspect_ratio": "landscape"}, (880, 1184)),
        ({"aspect_ratio": "square"}, (1024, 1024)),
        ({"width_mm": 210.0, "height_mm": 297.0}, (1216, 864)),
        ({"width_mm": 210.0}, None),
    ],
)
def test_rules_give_a_size(specs, size):
    assert size_by_rules(VisualSpecs.model_validate(specs), AREA, 16) == size
