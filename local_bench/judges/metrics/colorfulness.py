"""Colourfulness of an image: ICE-Bench's metric for colourisation (B.3, s_color of eq. 4), after Hasler and Suesstrunk
2003.

sqrt(std_rg^2 + std_yb^2) + 0.3 sqrt(mean_rg^2 + mean_yb^2) with rg = |R - G| and yb = |(R + G) / 2 - B| on [0, 1]; the
absolute values are the benchmark's, not the paper's. Higher is more colourful, 0 for grey. As in the benchmark's
evaluator, the image is first resized to the source's size if there is a source.
"""

import numpy as np

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec

COLORFULNESS = "colorfulness"


def make(name: str) -> "Colorfulness":
    return Colorfulness(name)


class Colorfulness(HostMetric):
    """`colorfulness`."""

    def __init__(self, name: str) -> None:
        prepared = (
            "where there is a source, image to its size by Pillow bicubic with antialiasing on RGB8, else as it is; "
            "RGB8 / 255, float64"
        )
        self.spec = MetricSpec(name, True, prepared, "ICE-Bench B.3 (ali-vilab/ICE-Bench colorfulness)", lowest=0.0)

    def measure(self, seen: LoadedSubject) -> float:
        image = seen.image_as_source if seen.has_source else seen.image
        red, green, blue = np.moveaxis(np.asarray(image, np.float64) / 255, 2, 0)
        rg, yb = np.abs(red - green), np.abs((red + green) / 2 - blue)
        return float(np.hypot(rg.std(), yb.std()) + 0.3 * np.hypot(rg.mean(), yb.mean()))
