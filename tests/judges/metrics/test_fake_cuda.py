"""Every metric's network on a GPU that only tracks devices (`tests.fake_cuda`): what stays on the CPU raises.

Parametrised over the registry: a new metric is covered by being listed, once its family has a small card.
"""

from typing import Any

import numpy as np
import pytest

from local_bench.generators.numerics import set_determinism
from local_bench.judges.metrics.base import Network
from local_bench.judges.metrics.registry import make_metric
from tests.fake_cuda import DEVICE, MIXED_DEVICES, fake_cuda

from .helpers import noise, small_cards

SIZE = (192, 160)


def network_of(name: str) -> tuple[Network, list[Any]]:
    """The network, and how one input is prepared in a survey: two images where a source is compared."""
    metric = make_metric(f"{name}:{small_cards()[name]}")
    images = [noise(i, SIZE) for i in range(2 if "source" in metric.spec.needs else 1)]
    return metric.network, images


@pytest.mark.parametrize("name", small_cards())
def test_a_network_runs_completely_on_the_device_with_the_values_of_the_cpu(cache, name):
    set_determinism(1)
    network, images = network_of(name)
    read = {}
    for device in ("cpu", str(DEVICE)):
        with fake_cuda():
            network.open(device)
            inputs = [network.prepare(images, None)]
            if network.reads_text:
                inputs.append(network.prepare([], "a red boot"))
            read[device] = [network.run([each])[0] for each in inputs]
            network.close()
    for on_device, here in zip(read[str(DEVICE)], read["cpu"], strict=True):
        np.testing.assert_allclose(on_device, here, rtol=1e-3, atol=1e-4)


# pyiqa's CLIPIQA moves its own model to the input's device.
@pytest.mark.parametrize("name", [name for name in small_cards() if name != "clipiqa"])
def test_an_input_that_stays_on_the_cpu_is_an_error(cache, monkeypatch, name):
    network, images = network_of(name)
    if network.on_cpu:
        pytest.skip("it runs on the CPU whatever the device is")
    with fake_cuda():
        network.open(str(DEVICE))
        monkeypatch.setattr(network, "_device", type(network._device)("cpu"))
        with pytest.raises(Exception, match=MIXED_DEVICES):
            network.run([network.prepare(images, None)])
