"""API prices per image that the benchmarks' papers assume: `configs/api_prices.yaml`."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Self

from pydantic import Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.files import config_files
from local_bench.core.yamlfile import Amount, Strict, load_yaml
from local_bench.suites.json_io import read_costs
from local_bench.suites.published import ScoreOptions


class ApiPrices(Strict):
    """One paper's prices."""

    source: str
    date: str
    usd_per_image: dict[str, Amount]
    aliases: dict[str, str] = Field(default={})
    """Model name in published result files -> its name in `usd_per_image`."""

    @model_validator(mode="after")
    def _aliases_of_priced_models(self) -> Self:
        unknown = next((name for name in self.aliases.values() if name not in self.usd_per_image), None)
        if unknown is not None:
            raise ValueError(f"aliases: {unknown!r} has no price in usd_per_image")
        return self

    @property
    def exact(self) -> dict[str, Decimal]:
        """{model: US dollars per image}, by the paper's own names."""
        return {model: Decimal(text) for model, text in self.usd_per_image.items()}

    def of(self, models: Iterable[str]) -> tuple[dict[str, Decimal], list[str]]:
        """The prices of those `models` that have one, and a message for each model that the paper lists under another
        name."""
        names = {model: self.aliases.get(model, model) for model in models}
        prices = self.exact
        return (
            {model: prices[name] for model, name in names.items() if name in prices},
            [f"{model} has the price of {name} ({self.source})" for model, name in names.items() if name != model],
        )


class _File(Strict):
    prices: dict[str, ApiPrices]


def prices_of(suite: str, options: ScoreOptions, models: Iterable[str]) -> tuple[dict[str, Decimal] | None, list[str]]:
    """(US dollars per image by model, notes) by `--costs` or the paper's prices; None without either."""
    if options.api_prices:
        return api_prices(suite).of(models)
    return None if options.costs is None else read_costs(options.costs), []


def api_prices(suite: str) -> ApiPrices:
    """The prices that the suite's paper assumes. ConfigError if the file has none for the suite."""
    files = config_files("api_prices.yaml")
    by_suite = {name: prices for path in reversed(files) for name, prices in load_yaml(path, _File).prices.items()}
    if suite not in by_suite:
        raise ConfigError(f"{files[0]} has no prices for {suite!r}, only for {', '.join(by_suite)}: give --costs")
    return by_suite[suite]
