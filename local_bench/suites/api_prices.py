"""What papers assumed an image to cost at an API: `configs/api_prices.yaml`."""

from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import AfterValidator

from local_bench.core.errors import ConfigError
from local_bench.core.paths import configs_dir
from local_bench.core.yamlfile import Strict, load_yaml


def _usd(text: str) -> str:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite() or amount < 0:
        raise ValueError('a price is US dollars in quotation marks, 0 or more: "0.04"')
    return text


class ApiPrices(Strict):
    """One paper's prices."""

    source: str
    date: str
    usd_per_image: dict[str, Annotated[str, AfterValidator(_usd)]]

    @property
    def exact(self) -> dict[str, Decimal]:
        """{model: US dollars an image}."""
        return {model: Decimal(text) for model, text in self.usd_per_image.items()}


class _File(Strict):
    prices: dict[str, ApiPrices]


def api_prices(suite: str) -> ApiPrices:
    """The prices that the suite's paper assumed. ConfigError where the file has none for it."""
    path = configs_dir() / "api_prices.yaml"
    found = load_yaml(path, _File).prices
    if suite not in found:
        raise ConfigError(f"{path} has no prices for {suite!r}, only for {', '.join(found)}: give --costs")
    return found[suite]
