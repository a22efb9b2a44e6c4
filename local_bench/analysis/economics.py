"""A run's results in ServImage's payment scenarios, its GPU cost compared with API prices, and the break-even
points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from local_bench.analysis.performance import GenerationStats, generation_stats
from local_bench.analysis.settlement import Accounting, deliverables
from local_bench.core.money import MICRO, nearest_micro_usd
from local_bench.runs.config import ModelConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import NOT_APPLICABLE, UNSCORED, Store, scores_by_image
from local_bench.settle.break_even import Local, break_even_images, break_even_usd_per_hour
from local_bench.settle.competition import Competition, compete
from local_bench.settle.savings import ClientSavings, savings
from local_bench.settle.settlement import Earnings, earnings
from local_bench.settle.table import OutcomeTable, table_of
from local_bench.suites.published import api_prices

SCORES = ("brf", "veq", "cns")
NS_PER_S = 1_000_000_000
Attempt = tuple[str, str, int, int]
"""Model, task, deliverable, attempt."""


@dataclass(frozen=True)
class BreakEven:
    """Break-even of one model on the run's devices with one API."""

    model: str
    api: str
    api_usd: Fraction
    """Price of one image."""
    usd_per_hour: Fraction | None
    """Maximum price of a GPU-hour at which a job of the run's size costs no more; None if there is none, or no
    timing."""
    usd_per_hour_endless: Fraction | None
    """The same for an unlimited job, for which loading is negligible."""
    images: int | None
    """Minimum number of images at which it costs no more at the run's price; None if there is none, or no price."""
    usd_here: Fraction | None
    """Cost per image of the run's job at the run's price; None without a price."""
    usd_one_more: Fraction | None
    """Marginal cost of one more image."""


@dataclass(frozen=True)
class Economics:
    table: OutcomeTable
    earnings: list[Earnings]
    competition: Competition
    by_ledger: list[ClientSavings]
    """With the metered cost (`usd_per_image` times the generated first attempts); in the table's order of models,
    like the other lists."""
    by_api: list[ClientSavings]
    """With the cost of the same images at an API; None if no price is given for the model."""
    timed: dict[str, Local]
    """Measured time per image by model, for models with a timing and, if electricity has a price, all their energy."""
    against: list[BreakEven]
    notes: list[str]
    """A sentence where a break-even is unknown."""


def economics_of(run: RunDir, money: Accounting) -> Economics | None:
    """`economics` with the prices of the run's config, against the lowest, the middle and the highest API price of
    table 6. None if nothing is settled or no task has a price. Used by the page, the JSON output and the exports."""
    if not any(s.total.value_micro_usd for s in money.settlements):
        return None
    settings = run.config.settlement
    return run.store.once(
        ("economics", settings.model_dump_json()),
        lambda: economics(
            run.store,
            money,
            {model: Decimal(text) for model, text in settings.api_usd_per_image.items()},
            _few(api_prices("servimage").exact),
            usd_per_kwh=Fraction(settings.usd_per_kwh or 0),
        ),
    )


def _few(prices: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """The lowest, the middle and the highest price."""
    ordered = sorted(prices, key=lambda api: (prices[api], api))
    return {api: prices[api] for api in (ordered[0], ordered[len(ordered) // 2], ordered[-1])}


def economics(
    store: Store,
    money: Accounting,
    usd_of: Mapping[str, Decimal],
    apis: Mapping[str, Decimal],
    require_success: bool = False,
    usd_per_kwh: Fraction = Fraction(0),
) -> Economics:
    """Settle the stored results. `usd_of`: model name -> price of one of its images at an API; `apis`: API name ->
    price of an image, for the break-even points; `usd_per_kwh`: price of electricity that is not included in the
    hourly price, applied to measured energy: where it is not measured wholly, the points are None."""
    lines = deliverables(store)
    scores = scores_by_image(store, lines["work_id"], SCORES, "judge").itertuples(index=False, name=None)
    table = table_of(lines, [_summed(cells) for cells in scores])
    stats = generation_stats(store, money, table.models)
    timed = {making.model: local for making in stats if (local := _local(making)) is not None}
    n_made = {making.model: making.timing.n_made for making in stats}
    unmetered = [m.model for m in stats if usd_per_kwh and m.model in timed and m.busy_energy_mj is None]
    against = _against(timed, n_made, money, apis, usd_per_kwh)
    unknown = (
        f"The energy of {', '.join(unmetered)} was not measured, or not of all denoising and decoding, so the "
        "break-even with electricity is unknown: settlement.usd_per_kwh=null leaves electricity out."
    )
    return Economics(
        table=table,
        earnings=earnings(table),
        competition=compete(table, require_success),
        by_ledger=savings(table, usd_per_image(store, money)),
        by_api=savings(table, {model: Fraction(usd) for model, usd in usd_of.items()}),
        timed={model: local for model, local in timed.items() if model not in unmetered},
        against=[BreakEven(r.model, r.api, r.api_usd, *[None] * 5) if r.model in unmetered else r for r in against],
        notes=[unknown] if unmetered else [],
    )


def usd_per_image(store: Store, money: Accounting) -> dict[str, Fraction]:
    """Model -> cost per generated image in US dollars, over all attempts; no entry for a model with unknown cost or
    without images."""
    n_made = store.n_candidates(made=True)
    return {
        s.model: Fraction(s.cost_micro_usd, MICRO * n_made[s.model])
        for s in money.settlements
        if s.cost_micro_usd is not None and s.model in n_made
    }


def with_own_digits(costs: Mapping[str, Fraction], models: Sequence[ModelConfig]) -> dict[str, Fraction]:
    """`costs` (`usd_per_image`) with all digits of the cost that the config gives for imported images, where it is that
    of each of them: the store has whole micro-USD."""
    configured = {m.label: m.imported.cost_usd_per_image for m in models if m.imported}
    return {
        model: Fraction(exact) if (exact := configured.get(model)) and usd * MICRO == nearest_micro_usd(exact) else usd
        for model, usd in costs.items()
    }


def summed_scores(store: Store) -> dict[Attempt, Decimal]:
    """The sum of BRF, VEQ and CNS of every image whose applicable scores are all present."""
    rows = store.frame("candidates", ["work_id", "model", "task_id", "deliverable", "attempt"])
    keys = rows.drop(columns="work_id").itertuples(index=False, name=None)
    scores = scores_by_image(store, rows["work_id"], SCORES, "judge").itertuples(index=False, name=None)
    summed = ((key, _summed(cells)) for key, cells in zip(keys, scores, strict=True))
    return {key: total for key, total in summed if total is not None}


@lru_cache(100_000)
def _summed(scores: tuple[float | str | None, ...]) -> Decimal | None:
    """The exact sum of the scores that apply, as they are written; None if one is absent or unscored."""
    if None in scores or UNSCORED in scores:
        return None
    return sum((Decimal(str(score)) for score in scores if score != NOT_APPLICABLE), Decimal(0))


def _against(
    timed: Mapping[str, Local],
    n_made: Mapping[str, int],
    money: Accounting,
    apis: Mapping[str, Decimal],
    usd_per_kwh: Fraction,
) -> list[BreakEven]:
    rows = []
    for model, local in timed.items():
        hour = money.usd_per_hour(model)
        for api, usd in apis.items():
            price = Fraction(usd)
            rows.append(
                BreakEven(
                    model,
                    api,
                    price,
                    break_even_usd_per_hour(local, price, n_made[model], usd_per_kwh),
                    break_even_usd_per_hour(local, price, None, usd_per_kwh),
                    None if hour is None else break_even_images(local, price, hour, usd_per_kwh),
                    None if hour is None else local.amortised_usd(n_made[model], hour, usd_per_kwh),
                    None if hour is None else local.marginal_usd(hour, usd_per_kwh),
                )
            )
    return rows


def _local(making: GenerationStats) -> Local | None:
    """Time and energy per image: denoising and decoding per image, all other device time of the model once. None
    without a timing. Unmeasured energy counts as zero."""
    n, busy_ns = making.timing.n_made, making.timing.busy_ns
    if making.imported or not n or not busy_ns:
        return None
    joules = Fraction(making.busy_energy_mj or 0, 1000 * n)
    return Local(Fraction(busy_ns, n * NS_PER_S), Fraction(making.held_ns - busy_ns, NS_PER_S), joules)
