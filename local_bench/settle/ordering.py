"""An order of rows that depends on their values alone, so that sums and seeded draws do not depend on the input's."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def by_content(tasks: ArrayLike, *columns: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices (rows,) that sort the rows by task, and the tasks by the values of their rows; and the numbers (rows,) of
    the sorted rows' tasks. `tasks` (rows,) identify the tasks, `columns` (rows,) are numbers."""
    of, table = np.asarray(tasks), np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    order = np.lexsort((*table.T, of))
    groups = np.split(order, np.flatnonzero(of[order][1:] != of[order][:-1]) + 1)
    groups.sort(key=lambda rows: table[rows].tobytes())
    return np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
