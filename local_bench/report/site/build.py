"""Writes the site of one run or several: an index, data in files that are loaded on demand, thumbnails and images."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from local_bench.analysis.ground_truth import check_ground_truth
from local_bench.core.errors import MissingExtra, UserError
from local_bench.core.packages import require
from local_bench.core.storage import write_atomic
from local_bench.judges import people
from local_bench.report.papers.draw import SMALL, SUFFIXES, width_inches
from local_bench.report.site.details import RunDetails
from local_bench.report.site.images import write_images
from local_bench.report.site.mark import claim
from local_bench.report.site.paper import figures, tables, write_figures, write_tables
from local_bench.report.site.run_figures import numbered, run_figures
from local_bench.report.site.summary import accounts_of, summary
from local_bench.runs.rundir import RunDir

IN_TABLES = ("revenue", "categories")
"""Figures that the page does not show, because its tables have the same numbers."""
LABEL_PX = 11
"""Least size of the text of figures on the page; on a narrower page they scroll."""
_STATIC = Path(__file__).parent / "static"
_COMPARE = [Path(people.__file__).parent / "static" / name for name in ("compare.css", "compare.js")]
"""Shared with the annotation page."""


@dataclass(frozen=True)
class Site:
    """A site that was written."""

    index: Path
    n_runs: int
    n_candidates: int
    n_missing: int
    """Images that are missing or damaged."""


def write_site(
    runs: Sequence[RunDir],
    out: Path,
    workers: int = 2,
    note: Callable[[str], None] = lambda _: None,
    ready: Callable[[], None] | None = None,
) -> Site:
    """Write the site of `runs` to `out` and return it. With `ready` it is for a server that also sends the runs'
    progress: figures are then SVG only, and are drawn after `ready` is called, when everything else is written.

    UserError if `out` has files that are not of a site, or for two runs of the same name; StorageError if a write
    fails.
    """
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two of the runs are named {twice!r}: rename one of their folders")
    claim(out)
    note("computing the summary")
    accounts = accounts_of(runs)
    found = summary(runs, accounts)
    drawn = figures(found)
    n_candidates = n_missing = 0
    for i, run in enumerate(runs):
        note(f"writing the images of {run.path}")
        n_missing += write_images(run, out, workers)
        note(f"writing the data of {run.path}")
        truths = check_ground_truth(run)
        details = RunDetails(run, {w: truth.right for w, truth in truths.truths.items()} if truths else {}, out)
        outcomes = run.store.outcomes()
        n_candidates += len(outcomes)
        n_files = 0
        for n_files, chunk in enumerate(details.candidates(outcomes), 1):
            _write_data(out, f"{i}-candidates-{n_files - 1}", chunk)
        n_task_files = 0
        for n_task_files, tasks in enumerate(details.task_files(outcomes), 1):
            _write_data(out, f"{i}-tasks-{n_task_files - 1}", tasks)
        _write_data(out, f"{i}-tasks", details.task_list())
        _write_data(out, f"{i}-rubrics", details.rubrics())
        found["runs"][i] |= {
            "candidate_files": n_files,
            "task_files": n_task_files,
            "models": details.models,
            "scores": details.names,
            "has_truth": bool(details.truths),
            "has_people": details.people is not None,
        }
        found["runs"][i]["warnings"] += details.notes
        own = run_figures(run, accounts[i], outcomes, details.decided_by_people)
        drawn |= numbered(own, i, names[i]) if len(runs) > 1 else own
    write_tables(tables(found), out / "tables")
    try:
        require("tables")
    except MissingExtra as e:
        note(f"figures are not drawn: {e}")
        drawn = {}
    shown = {name: figure for name, figure in drawn.items() if name not in IN_TABLES}
    found["figures"] = [
        {
            "file": f"{name}.svg",
            "title": figure.data.title,
            "width_px": round(width_inches(figure) * 72 * LABEL_PX / SMALL),
        }
        for name, figure in shown.items()
    ]
    _write_data(out, "summary", found)
    jinja = Environment(loader=PackageLoader("local_bench.report.site"), autoescape=True, undefined=StrictUndefined)
    page = jinja.get_template("index.html.j2").render(title=", ".join(names), live=ready is not None)
    for path in (*_STATIC.iterdir(), *_COMPARE):
        write_atomic(out / path.name, path.read_bytes())
    write_atomic(out / "index.html", page.encode())
    if ready:
        ready()
    note("drawing figures")
    write_figures(shown if ready else drawn, out / "figures", [".svg"] if ready else list(SUFFIXES))
    return Site(out / "index.html", len(runs), n_candidates, n_missing)


def _write_data(out: Path, name: str, value: Any) -> None:
    """Data as a script, because pages from a disk cannot read other files. ASCII, so that no character ends it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    write_atomic(out / "data" / f"{name}.js", f'LB("{name}",{text});\n'.encode())
