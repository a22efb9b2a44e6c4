import json
from decimal import Decimal

import pytest

from local_bench.core.errors import ConfigError
from local_bench.suites.published import api_prices


def test_every_list_has_a_source_and_a_date():
    for suite in ("servimage", "hype-edit-1"):
        prices = api_prices(suite)
        assert prices.source
        assert prices.date
        assert all(amount > 0 for amount in prices.exact.values())
    assert api_prices("servimage").exact["gemini-2.5-flash-image"] == Decimal("0.015947911")


def test_other_suites_have_no_prices():
    with pytest.raises(ConfigError, match="has no prices for 'ice-bench', only for servimage, hype-edit-1"):
        api_prices("ice-bench")


def test_they_are_the_papers(shared):
    table_6 = json.loads((shared / "reference/servimage.json").read_text(), parse_float=Decimal)
    assert api_prices("servimage").exact == table_6["table6_api_price_usd_per_call"]
    table_3 = json.loads((shared / "reference/hype_edit_1.json").read_text(), parse_float=Decimal)
    assert api_prices("hype-edit-1").exact == table_3["model_cost_usd_per_candidate"]
