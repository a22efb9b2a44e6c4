"""Writes the site of one run or several: an index, data in files that are loaded on demand, thumbnails and images."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from local_bench import annotation
from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.ground_truth import check_ground_truth
from local_bench.analysis.settlement import Accounting
from local_bench.core.environment import require
from local_bench.core.errors import MissingExtra, UserError
from local_bench.core.files import write_atomic
from local_bench.core.money import usd_number
from local_bench.core.table import Cell, Column, Table, table_of
from local_bench.report.panels import Figure
from local_bench.report.papers.draw import SMALL, SUFFIXES, width_inches
from local_bench.report.render import page_table
from local_bench.report.sections import sections
from local_bench.report.settlement import model_row, settlement_table, total_row
from local_bench.report.site.details import RunDetails, write_images
from local_bench.report.site.mark import claim
from local_bench.report.site.paper import (
    categories,
    common,
    figures,
    leaderboard,
    scores,
    tables,
    write_figures,
    write_tables,
)
from local_bench.report.site.run_figures import numbered, run_figures
from local_bench.report.site.summary import Model, Summary, accounts_of, summary
from local_bench.report.text import clean
from local_bench.report.view import decimals
from local_bench.report.view import warnings as cautions_of
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store.contents import root

FOLDER = "report"
"""A run's own report, in its folder; full images are those of the run."""
INDEX = "index.html"
IN_TABLES = ("revenue", "categories")
"""Figures that the page does not show, because its tables have the same numbers."""
LABEL_PX = 11
"""Least size of the text of figures on the page; on a narrower page they scroll."""
_STATIC = Path(__file__).parent / "static"
_COMPARE = [Path(annotation.__file__).parent / "static" / name for name in ("compare.css", "compare.js")]
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
    progress, and figures are drawn after `ready` is called, when everything else is written. In a run's own folder
    `report` and for a server figures are SVG only.

    UserError if `out` has files that are not of a site, or for two runs of the same name; StorageError if a write
    fails.
    """
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two of the runs are named {twice!r}: rename one of their folders")
    inside = [out == run.path / FOLDER for run in runs] == [True]
    claim(out, (INDEX,) if inside else ())
    note("computing the summary")
    accounts = accounts_of(runs)
    results = summary(runs, accounts)
    drawn = figures(results)
    shown_runs: list[dict[str, Any]] = []
    warnings = [f"Not comparable: {difference}." for difference in results.differences]
    n_candidates = n_missing = 0
    for i, run in enumerate(runs):
        note(f"writing the images of {run.path}")
        n_missing += write_images(run, out, workers, full=not inside)
        note(f"writing the data of {run.path}")
        entry, cautions, of_run = _write_run(run, i, accounts[i], out)
        shown_runs.append(entry | {"full": {"images": "../images", "inputs": "../inputs"} if inside else {}})
        n_candidates += run.store.counts().candidates
        warnings += [f"{run.name}: {caution}" for caution in cautions] if len(runs) > 1 else cautions
        drawn |= numbered(of_run, i, names[i]) if len(runs) > 1 else of_run
    write_tables(tables(results), out / "tables")
    try:
        require("tables")
    except MissingExtra as e:
        note(f"figures are not drawn: {e}")
        drawn = {}
    shown = {name: figure for name, figure in drawn.items() if name.rstrip("_0123456789") not in IN_TABLES}
    overview = _overview(results, runs, accounts)
    _write_data(
        out,
        "summary",
        {
            "runs": shown_runs,
            "overview": overview,
            "warnings": warnings,
            "about": page_table(_about(runs)),
            "models": [_model(model, results, runs[model.run]) for model in results.models],
            "figures": [
                {
                    "file": f"{name}.svg",
                    "title": figure.data.title,
                    "width_px": round(width_inches(figure) * 72 * LABEL_PX / SMALL),
                }
                for name, figure in shown.items()
            ],
        },
    )
    jinja = Environment(loader=PackageLoader("local_bench.report.site"), autoescape=True, undefined=StrictUndefined)
    said = visible([*(sentence for group in overview for sentence in group["sentences"]), *warnings])
    page = jinja.get_template("index.html.j2").render(title=", ".join(names), said=said, live=ready is not None)
    for path in (*_STATIC.iterdir(), *_COMPARE):
        write_atomic(out / path.name, path.read_bytes())
    write_atomic(out / INDEX, page.encode())
    if ready:
        ready()
    note("drawing figures")
    few = inside or ready is not None
    write_figures(shown if few else drawn, out / "figures", [".svg"] if few else list(SUFFIXES))
    return Site(out / INDEX, len(runs), n_candidates, n_missing)


def write_report(run: RunDir) -> Path:
    """Write the site of `run` to its own folder `report` and return its index. Raises as `write_site`."""
    return write_site([run], run.path / FOLDER, run.config.engine.io_workers).index


def _write_run(
    run: RunDir, index: int, money: Accounting, out: Path
) -> tuple[dict[str, Any], list[str], dict[str, Figure]]:
    """Write the data that are loaded on demand; return what the summary has of the run, its warnings and figures."""
    truth = check_ground_truth(run)
    shown = [vars(section) | {"tables": [*map(page_table, section.tables)]} for section in sections(run, money, truth)]
    _write_data(out, f"{index}-sections", shown)
    details = RunDetails(run, truth.truths if truth else {}, out)
    outcomes = run.store.outcomes()
    n_files = 0
    for n_files, chunk in enumerate(details.candidates(outcomes), 1):
        _write_data(out, f"{index}-candidates-{n_files - 1}", chunk)
    for i, tasks in enumerate(details.task_files(outcomes)):
        _write_data(out, f"{index}-tasks-{i}", tasks)
    _write_data(out, f"{index}-tasks", details.task_list())
    _write_data(out, f"{index}-rubrics", details.rubrics())
    entry = {
        "name": run.name,
        "candidate_files": n_files,
        "models": details.models,
        "scores": details.names,
        "decimals": decimals(run),
        "has_truth": bool(details.truths),
        "has_people": details.people is not None,
    }
    cautions = [*cautions_of(run, money.settlements), *details.notes]
    return entry, cautions, run_figures(run, money, outcomes, details.decided_by_people)


def _overview(results: Summary, runs: Sequence[RunDir], accounts: Sequence[Accounting]) -> list[dict[str, Any]]:
    """For each group of comparable runs its sentences and tables."""
    places: dict[str, int] = {}
    for run in runs:
        places |= {name: max(n, places.get(name, 0)) for name, n in decimals(run).items()}
    overviews = []
    for group in (results.of_group(group) for group in results.groups):
        of_group = dict.fromkeys(results.names[model.run] for model in group.models)
        links = [_link(model, results) for model in group.models]
        both = [link for link, model in zip(links, group.models, strict=True) if model.common]
        overviews.append(
            {
                "title": f"Comparable runs: {', '.join(of_group)}" if len(results.groups) > 1 else "Results",
                "sentences": group.sentences(accounts) or ["Nothing has been decided yet."],
                "tables": [
                    page_table(leaderboard(group, page=True), links),
                    *([page_table(common(group), both)] if both else []),
                    *(page_table(t, links) for t in (scores(group, places), categories(group)) if len(t.columns) > 1),
                ],
            }
        )
    return overviews


def _link(model: Model, results: Summary) -> dict[str, str]:
    """The cell of a model: its name, below it its run if there are several, and the address of its page."""
    name = model.settlement.model
    run = {"s": results.names[model.run]} if len(results.names) > 1 else {}
    return {"t": name, "h": f"#/model/{model.run}/{quote(name, safe='')}", **run}


def _model(model: Model, results: Summary, run: RunDir) -> dict[str, Any]:
    settlement, single = model.settlement, replace(results, models=[model])
    totals = [{"category": "all"} | model_row(settlement) | {"model": None}]
    totals += [{"category": name} | total_row(total) for name, total in settlement.by_category.items()]
    means = scores(single, decimals(run))
    return {
        "run": model.run,
        "name": settlement.model,
        "tables": [
            page_table(settlement_table("Totals", totals)),
            *([page_table(means)] if len(means.columns) > 1 else []),
        ],
    }


def _about(runs: Sequence[RunDir]) -> Table:
    columns = (
        *(Column("name", "run"), Column("suite", "suite"), Column("seed", "seed"), Column("tasks", "tasks", ",")),
        *(Column("value_usd", "value", ",.2f", unit="$"), Column("images", "images", ",")),
        *(Column("unscored", "not generated", ","), Column("planned", "planned", ","), Column("judges", "judges")),
        *(Column("acceptance", "acceptance"), Column("root", "root")),
    )
    rows: list[dict[str, Cell]] = []
    for run in runs:
        (n_tasks, value), counts = run.store.task_totals(), run.store.counts()
        rows.append(
            {
                "name": run.name,
                "suite": run.config.suite.name,
                "seed": run.config.seed,
                "tasks": n_tasks,
                "value_usd": usd_number(value) or None,
                "images": counts.done,
                "unscored": counts.unscored,
                "planned": counts.candidates - counts.done - counts.unscored,
                "judges": ", ".join(judge_labels(run).values()) or "none",
                "acceptance": ", ".join(
                    f"{name} ≥ {threshold:g}" for name, threshold in thresholds_of(run.config).items()
                ),
                "root": root(run.store)[:12],
            }
        )
    return table_of("Runs", columns, rows)


def visible(value: Any) -> Any:
    """Data with the hidden characters of its texts made visible (`clean`)."""
    if isinstance(value, dict):
        return {clean(key): visible(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [visible(inner) for inner in value]
    return clean(value)


def _write_data(out: Path, name: str, value: Any) -> None:
    """Data as a script, because pages from a disk cannot read other files. ASCII, so that no character ends it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if "\\u" in text or clean(text) != text:  # few files have a hidden character, and `visible` takes long
        value = visible(value)
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    write_atomic(out / "data" / f"{name}.js", f'LB("{name}",{text});\n'.encode())


SINGLE_FILE = "report.html"
MAX_IMAGE_BYTES = 15_000_000
"""Of the thumbnails, in the order of the plan; mail servers refuse larger messages."""
_TYPES = {".svg": "image/svg+xml", ".webp": "image/webp"}


def write_single_file(index: Path) -> Path:
    """Write the site of `index` to one file in its folder and return it. Full images and what exceeds MAX_IMAGE_BYTES
    are left out. StorageError if the write fails."""
    folder = index.parent
    data = [_text(path) for path in sorted((folder / "data").glob("*.js"))]
    inline = {path.name: _address(path) for path in sorted((folder / "figures").glob("*.svg"))}
    n_bytes = 0
    for sha in dict.fromkeys(re.findall(r'"([0-9a-f]{64})"', "".join(data))):
        path = folder / "thumbs" / sha[:2] / f"{sha}.webp"
        if path.is_file() and n_bytes + path.stat().st_size <= MAX_IMAGE_BYTES:
            n_bytes += path.stat().st_size
            inline[sha] = _address(path)
    entries = ",".join(f'"{name}":"{address}"' for name, address in inline.items())
    styles = [_text(folder / name) for name in ("compare.css", "viewer.css")]
    # Data come between the viewer's definition of LB and its first page, which needs them.
    viewer, start, rest = _text(folder / "viewer.js").partition("start();\n")
    scripts = [_text(folder / "compare.js"), f"window.INLINE={{{entries}}};\n{viewer}{''.join(data)}{start}{rest}"]
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:; base-uri "
        "'none'; form-action 'none'"
    )
    page = re.sub(r"<link[^>]*>\n|<script.*</script>\n", "", _text(index))
    page = re.sub(r'(Policy" content=")[^"]*', lambda match: match[1] + policy, page)
    page = page.replace("</head>", "".join(f"<style>{style}</style>" for style in styles) + "</head>")
    page = page.replace("</body>", "".join(f"<script>{script}</script>" for script in scripts) + "</body>")
    write_atomic(folder / SINGLE_FILE, page.encode())
    return folder / SINGLE_FILE


def _text(path: Path) -> str:
    """Text that does not end an element of a page: data have escapes in place of `<`, and nothing else has `</`."""
    text = path.read_text("utf-8")
    return text.replace("<", "\\u003c") if path.parent.name == "data" else text


def _address(path: Path) -> str:
    return f"data:{_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _hashes(texts: list[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)
