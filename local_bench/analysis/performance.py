"""Generation statistics of each model: time, cost and energy per image, including regeneration, warm-up and idle
time."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from local_bench.analysis.settlement import Accounting
from local_bench.core.money import NS_PER_HOUR
from local_bench.runs.roofline import BUSY, Timing, generated_kinds, operations, timing
from local_bench.runs.store import Store
from local_bench.settle.costs import PhaseCost, energy_mj

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


@dataclass(frozen=True)
class PromptTruncation:
    """Truncation of a model's prompts by one of its encoders."""

    model: str
    encoder: str
    n_prompts: int
    n_cut: int
    most_tokens: int
    """Largest number of tokens truncated from a prompt."""


def generation_stats(store: Store, money: Accounting, models: Iterable[str]) -> list[GenerationStats]:
    """Statistics of each of `models`, in order."""
    by_model: dict[str | None, list[PhaseCost]] = defaultdict(list)
    for row in money.costs:
        by_model[row.model].append(row)
    costs = store.imported_costs()
    imported = {model: costs.get(model) for model in store.imported_models()}
    return [_model_stats(store, model, by_model[model], money.price is not None, imported) for model in models]


def prompt_truncations(store: Store) -> list[PromptTruncation]:
    """Truncation per model and encoder; each distinct prompt counts once."""
    tokens: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for model, prompt, truncated in store.truncations():
        for encoder, n in truncated.items():
            by_prompt = tokens[model, encoder]
            by_prompt[prompt] = max(n, by_prompt.get(prompt, 0))
    return [
        PromptTruncation(model, encoder, len(counts), sum(n > 0 for n in counts.values()), max(counts.values()))
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
    busy = [row for row in costs if row.phase in BUSY]
    return GenerationStats(
        model=model,
        imported=model in imported,
        timing=timing(store, model),
        sizes=_sizes(store, model),
        batch_sizes=dict(sorted(batches.items(), reverse=True)),
        halved={sizes: n for sizes, n in sorted(halved.items(), reverse=True) if n},
        n_out_of_memory=sum(row.model == model and row.phase == "retry" for row in store.meter()),
        held_ns=sum(row.held_ns for row in costs),
        cost_micro_usd=imported[model] if model in imported else _cost(costs) if priced else None,
        busy_cost_micro_usd=_cost(busy) if priced else None,
        energy_mj=energy_mj(costs),
        busy_energy_mj=energy_mj(busy),
    )


def _sizes(store: Store, model: str) -> dict[tuple[int, int], int]:
    sizes: Counter[tuple[int, int]] = Counter()
    for row in store.generated():
        if row.model == model and row.height is not None and row.width is not None:
            sizes[row.height, row.width] += row.n
    return dict(sorted(sizes.items(), key=lambda size: (-size[1], size[0])))


def _cost(rows: list[PhaseCost]) -> int | None:
    return sum(row.cost_micro_usd for row in rows) if rows else None


def _nearest(micro: int | None, n: int) -> int | None:
    return None if micro is None or not n else int((Decimal(micro) / n).to_integral_value(ROUND_HALF_EVEN))


def _wh_each(mj: int | None, n: int) -> float | None:
    return None if mj is None or not n else mj / _MJ_PER_WH / n
