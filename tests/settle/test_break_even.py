import random
from fractions import Fraction as F

import pytest

from local_bench.settle.costs import Local, break_even_images, break_even_usd_per_hour

API = F("0.04")


def test_never_and_at_once():
    assert break_even_images(Local(F(100)), API, F("3.6")) is None
    assert break_even_images(Local(F(40), F(1)), API, F("3.6")) is None, "as dear as the API, and the loading on top"
    assert break_even_images(Local(F(40)), API, F("3.6")) == 1
    assert break_even_images(Local(F(10)), API, F("3.6")) == 1
    assert break_even_usd_per_hour(Local(F(0)), API) is None


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_first_place_on_the_curve(seed):
    rng = random.Random(seed)
    local = Local(F(rng.randint(1, 500), 10), F(rng.randint(0, 5000)), F(rng.randint(0, 9000)))
    price, energy = F(rng.randint(1, 800), 100), F(rng.randint(0, 60), 100)
    first = break_even_images(local, API, price, energy)
    sizes = range(1, 400)
    cheap = [n for n in sizes if local.amortised_usd(n, price, energy) <= API]
    if first is None or first >= 400:
        assert cheap == []
    else:
        assert cheap == list(range(first, 400))
        limit = break_even_usd_per_hour(local, API, first, energy)
        assert limit is not None
        assert limit >= price
        assert local.amortised_usd(first, limit, energy) == API
