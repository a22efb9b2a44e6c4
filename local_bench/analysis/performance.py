"""What each system's pictures took and cost: per image, with what was made anew, warmed up and waited for beside it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from local_bench.analysis.settlement import Accounting
from local_bench.core.money import NS_PER_HOUR
from local_bench.runs.operations import generated_kinds, operations
from local_bench.runs.roofline import BUSY, Timing, timing
from local_bench.runs.store import Store
from local_bench.settle.costs import PhaseCost, energy_mj

_MJ_PER_WH = 3_600_000


@dataclass(frozen=True)
class GenerationStats:
    """One system's pictures. Where a figure is None, nothing measured it: never 0."""

    model: str
    imported: bool
    """Made elsewhere: only counted, and priced at what they cost there."""
    timing: Timing
    sizes: dict[tuple[int, int], int]
    """Pictures by (height, width)."""
    batch_sizes: dict[int, int]
    """Pictures by the fixed batch size that they were made with."""
    halved: dict[tuple[int, int], int]
    """Pictures by (planned, used) batch size, where fewer were made at once than planned."""
    n_out_of_memory: int
    """How often a batch that had begun did not fit."""
    held_ns: int
    """All that was held for the model: loading, warming up, encoding, retries and the rest."""
    cost_micro_usd: int | None
    """Of all of it; of imported pictures, what they cost where they were made."""
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
        """Amortised: all that was paid, over the pictures that are there."""
        return _nearest(self.cost_micro_usd, self.n_images)

    @property
    def marginal_image_micro_usd(self) -> int | None:
        """What one picture more would cost: denoising and decoding alone."""
        return _nearest(self.busy_cost_micro_usd, self.timing.n_made)

    @property
    def wh_per_image(self) -> float | None:
        return _wh_each(self.energy_mj, self.n_images)

    @property
    def marginal_wh_per_image(self) -> float | None:
        return _wh_each(self.busy_energy_mj, self.timing.n_made)


@dataclass(frozen=True)
class Cut:
    """How much of a model's prompts one of its encoders did not see."""

    model: str
    encoder: str
    n_prompts: int
    n_cut: int
    most_tokens: int
    """The most that one prompt lost."""


def makings(store: Store, money: Accounting, models: Iterable[str]) -> list[GenerationStats]:
    """One for each of `models`, in their order."""
    by_model: dict[str | None, list[PhaseCost]] = defaultdict(list)
    for row in money.costs:
        by_model[row.model].append(row)
    known = store.imported_costs()
    imported = {model: known.get(model) for model in store.imported_models()}
    return [_making(store, model, by_model[model], money.price is not None, imported) for model in models]


def cuts(store: Store) -> list[Cut]:
    """One for each encoder of each model that can cut prompts; a prompt counts once, however often it is drawn."""
    tokens: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in store.candidates():
        for encoder, n in row.truncated.items():
            of = tokens[row.model, encoder]
            of[row.prompt] = max(n, of.get(row.prompt, 0))
    return [
        Cut(model, encoder, len(of), sum(n > 0 for n in of.values()), max(of.values()))
        for (model, encoder), of in sorted(tokens.items())
    ]


def _making(
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
    sizes = Counter(
        (row.height, row.width)
        for row in store.candidates(model)
        if row.state == "done" and row.height is not None and row.width is not None
    )
    return dict(sorted(sizes.items(), key=lambda of: (-of[1], of[0])))


def _cost(rows: list[PhaseCost]) -> int | None:
    return sum(row.cost_micro_usd for row in rows) if rows else None


def _nearest(micro: int | None, n: int) -> int | None:
    return None if micro is None or not n else int((Decimal(micro) / n).to_integral_value(ROUND_HALF_EVEN))


def _wh_each(mj: int | None, n: int) -> float | None:
    return None if mj is None or not n else mj / _MJ_PER_WH / n
