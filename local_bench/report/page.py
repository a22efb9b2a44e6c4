"""The report: one HTML page that opens from disk, loads nothing from the network and runs no script."""

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from local_bench.analysis.ground_truth import check_ground_truth
from local_bench.analysis.hard_rules import hard_rule_stats
from local_bench.analysis.performance import generation_stats, prompt_truncations
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.storage import write_atomic
from local_bench.report import benchmark, costs, economics, gallery, judging, making, provenance, scores, truth, view
from local_bench.report.overview import overview
from local_bench.report.site.significance import significance
from local_bench.report.text import clean
from local_bench.runs.contents import root
from local_bench.runs.image_store import faults_sentence
from local_bench.runs.rundir import RunDir


def write_report(run: RunDir, money: Accounting | None = None) -> Path:
    """Write `<run>/report/index.html` from the current contents of the ledger and return its path. `money` is the run's
    accounting, if it is computed already.

    LedgerError if the ledger cannot be read, ConfigError if the price table lacks the config's row, StorageError if
    writing fails.
    """
    path = run.path / "report" / "index.html"
    write_atomic(path, render(run, money).encode())
    return path


def render(run: RunDir, money: Accounting | None = None) -> str:
    """The page as text: the same ledger, config and provenance give the same page."""
    money = money or accounting(run.store, run.config.settlement)
    made = generation_stats(run.store, money, view.model_order(run))
    known = check_ground_truth(run)
    orders = gallery.gallery(run, known.truths if known else None)
    common = unseen_inputs(run).common
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            csp=_policy(),
            root=root(run.store),
            run=run.config,
            size=view.size_line(run),
            overview=overview(money, significance([run], [0]), common),
            warnings=[*view.warnings(run, money.settlements), *faulty_images(run)],
            settlement=view.settlement_rows(run, money),
            priced=any(s.total.value_micro_usd for s in money.settlements),
            common=view.rows_of(common),
            categories=view.category_rows(money.settlements),
            truth=truth.truth_view(known),
            thresholds=view.thresholds(run),
            rules=hard_rule_stats(run),
            max_reasons=scores.MAX_REASONS,
            decision_reasons=scores.decision_reasons(run),
            price=costs.price_sentence(money.price),
            models=view.model_order(run),
            scores=scores.score_table(run),
            better=scores.better(run),
            judging=judging.judging(run),
            score_reasons=scores.score_reasons(run),
            costs=costs.cost_table(run, money),
            benchmark=benchmark.benchmark_view(run),
            economics=economics.economics_view(run, money),
            making=making.making_rows(made, priced=money.price is not None),
            hour=making.hour(made),
            peak=making.peak_sentence(made),
            batches=making.batch_sentences(made),
            cuts=making.cut_rows(prompt_truncations(run.store)),
            orders=orders,
            orders_left_out=gallery.n_orders(run) - len(orders),
            sessions=provenance.sessions(run),
            provenance=provenance.provenance(run),
        )
    )


def faulty_images(run: RunDir) -> list[str]:
    """A sentence about images that were found missing, damaged or altered; empty if there are none."""
    faults = run.image_store.all_faults
    if not faults:
        return []
    return [f"{faults_sentence(faults)}. Scores and decisions are of the images as they were generated."]


@cache
def _environment() -> Environment:
    """Escapes everything and shows hidden characters; an unknown name is an error."""
    return Environment(
        loader=PackageLoader("local_bench.report", "."),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _policy() -> str:
    """The page's Content-Security-Policy: only its own images and its one style sheet."""
    style = _environment().get_template("page.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
