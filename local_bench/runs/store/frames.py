"""Functions of the store's data frames."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from local_bench.runs.store.rows import Kind
from local_bench.runs.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

UNSCORED, NOT_APPLICABLE = "unscored", "not applicable"


def plain(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Values as Python objects, None where they are missing."""
    return rows.astype(object).where(rows.notna(), None)


def scored(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of a frame of scores that have a value, with `value` as float64: those that are unscored or do not apply
    are left out, and must be counted beside every aggregate (invariant 5)."""
    present = scores[scores["value"].notna()]
    return present.assign(value=present["value"].astype("float64"))


def scores_by_image(
    store: Store, work_ids: "pd.Series[str]", names: Sequence[str], kind: Kind | None = None, *, reasons: bool = False
) -> "pd.DataFrame":
    """The scores of these names, of one kind or of both, as columns of images in the order of `work_ids`: a float,
    UNSCORED, NOT_APPLICABLE, or None if it is absent. With `reasons`, UNSCORED is followed by `: ` and the reason."""
    import numpy as np
    import pandas as pd

    marks = ", ".join("?" * len(names))
    where = f"name IN ({marks}) AND (kind = ? OR ? IS NULL)"
    scores = store.frame("scores", ["work_id", "name", "value", "unscored", "applies"], where, *names, kind, kind)
    index, columns = pd.Index(work_ids), {}
    for name in names:
        rows = scores[(scores["name"] == name).to_numpy(bool)]
        cells = rows["value"].astype(object).to_numpy(copy=True)
        missing = rows["value"].isna().to_numpy(bool)
        cells[missing] = (UNSCORED + ": " + rows["unscored"][missing]) if reasons else UNSCORED
        cells[(rows["applies"] == 0).to_numpy(bool)] = NOT_APPLICABLE
        at = index.get_indexer(rows["work_id"])
        column = np.full(len(index), None, dtype=object)
        column[at[at >= 0]] = cells[at >= 0]
        columns[name] = column
    return pd.DataFrame(columns, index=range(len(index)), dtype=object)
