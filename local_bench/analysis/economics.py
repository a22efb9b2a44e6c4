"""A run's results in ServImage's payment scenarios, its GPU cost compared with API prices, and the break-even points;
time, cost and energy per image of each model, including regeneration, warm-up and idle time; and the candidates as one
table, which `load_run` and the exports share."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pandas as pd

from local_bench.analysis.settlement import Accounting, deliverables
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.money import MICRO, NS_PER_HOUR, part_of
from local_bench.runs.roofline import BUSY, Timing, generated_kinds, operations, timing
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import NOT_APPLICABLE, UNSCORED, Store, scores_by_image
from local_bench.settle.costs import Local, PhaseCost, break_even_images, break_even_usd_per_hour, energy_mj
from local_bench.settle.settlement import ClientSavings, Competition, compete, savings
from local_bench.settle.table import OutcomeTable, table_of
from local_bench.suites.published import SETTLEMENT_PRICES, api_prices

_MJ_PER_WH = 3_600_000


@dataclass(frozen=True)
class GenerationStats:
    """Generation statistics of one model. Unmeasured values are None, never 0."""

    model: str
    imported: bool
    """Imported images: only counted, with their stated cost."""
    timing: Timing
    sizes: dict[tuple[int, int], int]
    """Number of images by (height, width)."""
    batch_sizes: dict[int, int]
    """Number of images by batch size."""
    halved: dict[tuple[int, int], int]
    """Number of images by (planned, used) batch size, for reduced batches."""
    n_out_of_memory: int
    """Number of batches that ran out of memory."""
    held_ns: int
    """Total device time of the model, including loading, warm-up, encoding and retries."""
    cost_micro_usd: int | None
    """Cost of the total device time; of imported images, their stated cost."""
    busy_cost_micro_usd: int | None
    energy_mj: int | None
    busy_energy_mj: int | None

    @property
    def n_images(self) -> int:
        return self.timing.n_images

    @property
    def images_per_gpu_hour(self) -> float | None:
        return self.n_images * NS_PER_HOUR / self.held_ns if self.held_ns else None

    @property
    def image_micro_usd(self) -> int | None:
        """Amortised cost per image: total cost over finished images."""
        return _nearest(self.cost_micro_usd, self.n_images)

    @property
    def marginal_image_micro_usd(self) -> int | None:
        """Marginal cost of one image: denoising and decoding only."""
        return _nearest(self.busy_cost_micro_usd, self.timing.n_made)

    @property
    def wh_per_image(self) -> float | None:
        return _wh_each(self.energy_mj, self.n_images)

    @property
    def marginal_wh_per_image(self) -> float | None:
        return _wh_each(self.busy_energy_mj, self.timing.n_made)


SCORES = ("brf", "veq", "cns")
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class BreakEven:
    """Break-even of one model on the run's devices with one API, with the names of the JSON and the exports."""

    model: str
    api: str
    api_usd_per_image: Fraction
    usd_per_image: Fraction | None
    """Of the run's job at the run's price; None without a price."""
    marginal_usd_per_image: Fraction | None
    """Cost of one more image."""
    break_even_usd_per_hour: Fraction | None
    """Maximum price of a GPU-hour at which a job of the run's size costs no more; None if there is none, or no
    timing."""
    break_even_usd_per_hour_endless: Fraction | None
    """The same for an unlimited job, for which loading is negligible."""
    break_even_images: int | None
    """Minimum number of images at which it costs no more at the run's price; None if there is none, or no price."""


@dataclass(frozen=True)
class Economics:
    table: OutcomeTable
    competition: Competition
    by_ledger: list[ClientSavings]
    """With the metered cost (`usd_per_image` times the generated first attempts); in the table's order of models,
    like `by_api`."""
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
    settings, prices = run.config.settlement, api_prices(SETTLEMENT_PRICES).exact
    ordered = sorted(prices, key=lambda api: (prices[api], api))
    return run.store.once(
        ("economics", settings.model_dump_json()),
        lambda: economics(
            run.store,
            money,
            {model: Decimal(text) for model, text in settings.api_usd_per_image.items()},
            {api: prices[api] for api in (ordered[0], ordered[len(ordered) // 2], ordered[-1])},
            usd_per_kwh=Fraction(settings.usd_per_kwh or 0),
        ),
    )


def economics(
    store: Store,
    money: Accounting,
    usd_of: Mapping[str, Decimal],
    apis: Mapping[str, Decimal],
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
    unknown = (
        f"The energy of {', '.join(unmetered)} was not measured, or not of all denoising and decoding, so the "
        "break-even with electricity is unknown: settlement.usd_per_kwh=null leaves electricity out."
    )
    against = []
    for model, local in timed.items():
        n, hour = n_made[model], money.usd_per_hour(model)
        for api, usd in ((api, Fraction(price)) for api, price in apis.items()):
            if model in unmetered:
                against.append(BreakEven(model, api, usd, *[None] * 5))
                continue
            limit, endless = (break_even_usd_per_hour(local, usd, images, usd_per_kwh) for images in (n, None))
            each = one_more = least = None
            if hour is not None:
                each, one_more = local.amortised_usd(n, hour, usd_per_kwh), local.marginal_usd(hour, usd_per_kwh)
                least = break_even_images(local, usd, hour, usd_per_kwh)
            against.append(BreakEven(model, api, usd, each, one_more, limit, endless, least))
    return Economics(
        table=table,
        competition=compete(table),
        by_ledger=savings(table, usd_per_image(store, money)),
        by_api=savings(table, {model: Fraction(usd) for model, usd in usd_of.items()}),
        timed={model: local for model, local in timed.items() if model not in unmetered},
        against=against,
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


def summed_scores(store: Store) -> dict[str, Decimal]:
    """Work id -> the sum of BRF, VEQ and CNS of every image whose applicable scores are all present."""
    work_ids = store.frame("candidates", ["work_id"])["work_id"]
    scores = scores_by_image(store, work_ids, SCORES, "judge").itertuples(index=False, name=None)
    summed = zip(work_ids, map(_summed, scores), strict=True)
    return {work_id: total for work_id, total in summed if total is not None}


@lru_cache(100_000)
def _summed(scores: tuple[float | str | None, ...]) -> Decimal | None:
    """The exact sum of the scores that apply, as they are written; None if one is absent or unscored."""
    if None in scores or UNSCORED in scores:
        return None
    return sum((Decimal(str(score)) for score in scores if score != NOT_APPLICABLE), Decimal(0))


def _local(making: GenerationStats) -> Local | None:
    """Time and energy per image: denoising and decoding per image, all other device time of the model once. None
    without a timing. Unmeasured energy counts as zero."""
    n, busy_ns = making.timing.n_made, making.timing.busy_ns
    if making.imported or not n or not busy_ns:
        return None
    joules = Fraction(making.busy_energy_mj or 0, 1000 * n)
    return Local(Fraction(busy_ns, n * NS_PER_S), Fraction(making.held_ns - busy_ns, NS_PER_S), joules)


_DIGITS = 18
"""Decimals of a cost: a mean over images is no whole number of micro-dollars."""


def candidate_table(run: RunDir, money: Accounting, where: str = "TRUE", *values: str) -> pd.DataFrame:
    """The candidates (that satisfy an SQL condition), by work id, with their task and decision (the frame `outcomes`);
    `money` is the run's accounting. Further columns, and changed ones:

    - `price_micro_usd`: the deliverable's part of the task's price, `task_price_micro_usd`;
    - `cost_usd`: the cost of an imported image, else the model's mean metered cost per image; missing without an image,
      or if the cost is not known. `cost_micro_usd` is that of imported images only;
    - `image`: the image's path in the run directory; missing without an image;
    - `without_inputs`: whether the model does not take all of the task's input images; missing for imported models.
    """
    rows = run.store.frame("outcomes", (), where, *values)
    counts = run.store.frame("candidates", ["model", "task_id", "deliverable"])
    n = counts.groupby(["model", "task_id"], sort=False)["deliverable"].nunique().rename("n").reset_index()
    n_of = rows[["model", "task_id"]].merge(n, how="left")["n"]
    imported = {model.label for model in run.config.models if model.imported is not None}
    unseen = unseen_inputs(run).pairs
    means = usd_per_image(run.store, money).items()
    mean = {model: Decimal(round(usd * 10**_DIGITS)).scaleb(-_DIGITS) for model, usd in means}
    digests, costs = rows["pixels_sha256"], rows["cost_micro_usd"]
    return rows.assign(
        price_micro_usd=[
            part_of(int(price), int(n), int(i) - 1)
            for price, n, i in zip(rows["task_price_micro_usd"], n_of, rows["deliverable"], strict=True)
        ],
        cost_usd=[
            None if pd.isna(sha) else mean.get(model) if pd.isna(cost) else Decimal(int(cost)) / MICRO
            for sha, model, cost in zip(digests, rows["model"], costs, strict=True)
        ],
        image=[None if pd.isna(sha) else run.image(sha).relative_to(run.path).as_posix() for sha in digests],
        without_inputs=[
            None if model in imported else (model, task_id) in unseen
            for model, task_id in zip(rows["model"], rows["task_id"], strict=True)
        ],
    )


def generation_stats(store: Store, money: Accounting, models: Iterable[str]) -> list[GenerationStats]:
    """Statistics of each of `models`, in order."""
    by_model: dict[str | None, list[PhaseCost]] = defaultdict(list)
    for row in money.costs:
        by_model[row.model].append(row)
    costs = store.imported_costs()
    imported = {model: costs.get(model) for model in store.imported_models()}
    return [_model_stats(store, model, by_model[model], money.price is not None, imported) for model in models]


def prompt_truncations(store: Store) -> list[dict[str, Any]]:
    """Truncation per `model` and `encoder`: `n_prompts`, each distinct one once, `n_cut` of them that were truncated,
    and `most_tokens` that one has lost."""
    tokens: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for model, prompt, truncated in store.truncations():
        for encoder, n in truncated.items():
            by_prompt = tokens[model, encoder]
            by_prompt[prompt] = max(n, by_prompt.get(prompt, 0))
    return [
        {"model": model, "encoder": encoder, "n_prompts": len(counts)}
        | {"n_cut": sum(n > 0 for n in counts.values()), "most_tokens": max(counts.values())}
        for (model, encoder), counts in sorted(tokens.items())
    ]


def _model_stats(
    store: Store, model: str, costs: list[PhaseCost], priced: bool, imported: dict[str, int | None]
) -> GenerationStats:
    counted = operations(store, model)
    batches: Counter[int] = Counter()
    halved: Counter[tuple[int, int]] = Counter()
    for (kind, size), n in generated_kinds(store, model, counted).items():
        if size is not None:
            batches[size] += n
            planned = counted.kinds[kind].planned_batch_size if kind in counted.kinds else size
            halved[planned, size] += n if size < planned else 0
    sizes: Counter[tuple[int, int]] = Counter()
    for row in store.generated():
        if row.model == model and row.height is not None and row.width is not None:
            sizes[row.height, row.width] += row.n
    busy = [row for row in costs if row.phase in BUSY]
    return GenerationStats(
        model=model,
        imported=model in imported,
        timing=timing(store, model),
        sizes=dict(sorted(sizes.items(), key=lambda size: (-size[1], size[0]))),
        batch_sizes=dict(sorted(batches.items(), reverse=True)),
        halved={sizes: n for sizes, n in sorted(halved.items(), reverse=True) if n},
        n_out_of_memory=sum(row.model == model and row.phase == "retry" for row in store.meter()),
        held_ns=sum(row.held_ns for row in costs),
        cost_micro_usd=imported[model] if model in imported else _cost(costs) if priced else None,
        busy_cost_micro_usd=_cost(busy) if priced else None,
        energy_mj=energy_mj(costs),
        busy_energy_mj=energy_mj(busy),
    )


def _cost(rows: list[PhaseCost]) -> int | None:
    return sum(row.cost_micro_usd for row in rows) if rows else None


def _nearest(micro: int | None, n: int) -> int | None:
    return None if micro is None or not n else int((Decimal(micro) / n).to_integral_value(ROUND_HALF_EVEN))


def _wh_each(mj: int | None, n: int) -> float | None:
    return None if mj is None or not n else mj / _MJ_PER_WH / n
