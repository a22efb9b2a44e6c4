import pytest
import torch

from local_bench.core.errors import ConfigError
from local_bench.generators.batches import deal, padded
from local_bench.generators.numerics import attention_backend, choose_device, choose_devices


@pytest.mark.parametrize("order", ["plan", "reverse", "shuffle"])
def test_distribution_over_batches_is_complete(order):
    batches = deal(range(10), 4, order)
    assert [len(b) for b in batches] == [4, 4, 2]
    assert sorted(x for b in batches for x in b) == list(range(10))
    assert (batches[0] == [0, 1, 2, 3]) == (order == "plan")


def test_padding_repeats_the_last():
    assert padded([1, 2], 4) == [1, 2, 2, 2]
    assert padded([1, 2], 2) == [1, 2]


def test_a_missing_device_is_an_error():
    with pytest.raises(ConfigError, match=r"engine\.device"):
        choose_device("tpu9")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="does not exist on this machine"):
            choose_device("cuda:7")


def test_lossy_and_impossible_attention_is_refused():
    with pytest.raises(ConfigError, match="changes the model"):
        attention_backend("sage", torch.device("cpu"), "float32")
    with pytest.raises(ConfigError, match="no build for this release"):
        attention_backend("xformers", torch.device("cpu"), "float32")
    assert attention_backend("auto", torch.device("cpu"), "bfloat16") == "native"


def test_workers_need_their_gpus():
    assert choose_devices("cpu", 3) == [torch.device("cpu")] * 3
    if not torch.cuda.is_available():
        assert choose_devices("auto", None) == [torch.device("cpu")]
