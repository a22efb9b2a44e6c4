"""The candidates of a run as one table, which `load_run` and the exports share."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from local_bench.analysis.economics import usd_per_image
from local_bench.analysis.settlement import Accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.money import MICRO, part_of
from local_bench.runs.rundir import RunDir

_DIGITS = 18
"""Decimals of a cost: a mean over images is no whole number of micro-dollars."""


class CandidateTable:
    """Reads candidates with what follows from other tables. `money` is the run's accounting."""

    def __init__(self, run: RunDir, money: Accounting) -> None:
        self._run = run
        self._imported = {model.label for model in run.config.models if model.imported is not None}
        self._n_deliverables = run.store.n_deliverables()
        self._unseen = unseen_inputs(run).pairs
        self._costs = {model: _rounded(usd) for model, usd in usd_per_image(run.store, money).items()}

    def part(self, limits: tuple[str, str]) -> dict[str, Sequence[Any]]:
        """The candidates of a part (`Store.parts`) as columns, by work id: those of `candidates`, of the task and of
        the decision, and

        - `price_micro_usd`: the deliverable's part of the task's price, `task_price_micro_usd`;
        - `cost_usd`: the cost of an imported image, else the model's mean metered cost per image; None without an
          image, or if the cost is not known. The ledger's `cost_micro_usd` is that of imported images only;
        - `image`: the image's path in the run directory; None without an image;
        - `without_inputs`: whether the model does not take all of the task's input images; None for imported models.
        """
        read: Mapping[str, Sequence[Any]] = self._run.store.candidate_columns(limits)
        names = ("task_id", "model", "deliverable", "task_price_micro_usd", "pixels_sha256", "cost_micro_usd")
        prices, costs, images = [], [], []
        for task_id, model, deliverable, price, sha, own in zip(*(read[name] for name in names), strict=True):
            prices.append(part_of(price, self._n_deliverables[task_id, model], deliverable - 1))
            images.append(None if sha is None else self._run.image(sha).relative_to(self._run.path).as_posix())
            costs.append(None if sha is None else self._costs.get(model) if own is None else Decimal(own) / MICRO)
        pairs = zip(read["model"], read["task_id"], strict=True)
        unseen = [None if pair[0] in self._imported else pair in self._unseen for pair in pairs]
        return {**read, "price_micro_usd": prices, "cost_usd": costs, "image": images, "without_inputs": unseen}


def _rounded(usd: Fraction) -> Decimal:
    return Decimal(round(usd * 10**_DIGITS)).scaleb(-_DIGITS)
