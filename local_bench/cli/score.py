"""`local-bench score`: a benchmark's official files in, its published numbers out."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from local_bench.cli.output import say, show, show_json, table

if TYPE_CHECKING:
    from local_bench.report.published.answer import Published

SUITES = ("ice-bench", "idea-bench", "hype-edit-1", "servimage")
FILE = click.Path(path_type=Path)
OF_SUITE = {
    "--tasks": ("servimage",),
    "--scores": ("servimage",),
    "--require-success": ("servimage",),
    "--costs": ("servimage", "hype-edit-1"),
    "--review-usd-per-hour": ("hype-edit-1",),
    "--review-seconds": ("hype-edit-1",),
    "--retry-cap": ("hype-edit-1",),
}


@click.command()
@click.argument("suite", metavar="SUITE")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=FILE)
@click.option("--tasks", type=FILE, help="servimage: the orders (task_id, category, price_usd, deliverables).")
@click.option("--scores", type=FILE, help="servimage: BRF, VEQ and CNS an image, which break the competition's ties.")
@click.option("--costs", type=FILE, help='servimage, hype-edit-1: {"model": US dollars an image}.')
@click.option(
    "--require-success", is_flag=True, default=None, help="servimage: a winner is paid for whole orders only."
)
@click.option("--review-usd-per-hour", metavar="USD", help="hype-edit-1: what a reviewer earns [default: 50].")
@click.option("--review-seconds", metavar="S", help="hype-edit-1: how long a look at one image takes [default: 20].")
@click.option("--retry-cap", metavar="N", type=click.IntRange(1, 1000), help="hype-edit-1: most tries [default: 4].")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def score(
    suite: str,
    files: tuple[Path, ...],
    tasks: Path | None,
    scores: Path | None,
    costs: Path | None,
    require_success: bool | None,
    review_usd_per_hour: str | None,
    review_seconds: str | None,
    retry_cap: int | None,
    as_json: bool,
) -> int:
    """Compute a benchmark's published numbers from its own result files.

    SUITE is ice-bench (eval_result.txt), idea-bench (results CSV), hype-edit-1 (judgements.json) or servimage
    (annotations.jsonl, one or several)."""
    from local_bench.core.errors import UserError

    given = {
        "--tasks": tasks,
        "--scores": scores,
        "--costs": costs,
        "--require-success": require_success,
        "--review-usd-per-hour": review_usd_per_hour,
        "--review-seconds": review_seconds,
        "--retry-cap": retry_cap,
    }
    _check(suite, given)
    if suite != "servimage" and len(files) != 1:
        raise UserError(f"{suite} has its results in one file, and {len(files)} are given: score each by itself")
    match suite:
        case "servimage":
            found = _servimage(files, tasks, scores, costs, bool(require_success))
        case "hype-edit-1":
            found = _hype_edit_1(files[0], costs, review_usd_per_hour, review_seconds, retry_cap)
        case "idea-bench":
            found = _idea_bench(files[0])
        case _:
            found = _ice_bench(files[0])
    if as_json:
        show_json(found.data)
    else:
        show("\n\n".join(table(header, rows) for header, rows in found.tables))
    for note in found.notes:
        say(note)
    return 0


def _check(suite: str, given: Mapping[str, object]) -> None:
    """UserError for a suite that there is not, and for an option that is another's."""
    import difflib

    from local_bench.core.errors import UserError

    if suite not in SUITES:
        near = difflib.get_close_matches(suite, SUITES, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(SUITES)}"
        raise UserError(f"there is no suite {suite!r} with result files of its own: {hint}")
    stray = next((flag for flag, value in given.items() if value is not None and suite not in OF_SUITE[flag]), None)
    if stray:
        raise UserError(f"{stray} is for {' and '.join(OF_SUITE[stray])}: leave it out for {suite}")


def _servimage(
    files: tuple[Path, ...], tasks: Path | None, scores: Path | None, costs: Path | None, require_success: bool
) -> "Published":
    from local_bench.core.errors import UserError
    from local_bench.report.published.servimage import published
    from local_bench.suites.servimage_results import check_images, read_annotations, read_orders, read_scores
    from local_bench.suites.sheets import read_costs

    if tasks is None:
        raise UserError("servimage is settled from its orders' prices: say with --tasks where they are")
    orders = read_orders(tasks)
    images = read_annotations(files)
    rated = None if scores is None else read_scores(scores)
    check_images([*images, *(rated or [])], orders)
    return published(images, orders, rated, None if costs is None else read_costs(costs), require_success)


def _hype_edit_1(
    file: Path, costs: Path | None, usd_per_hour: str | None, seconds: str | None, cap: int | None
) -> "Published":
    from local_bench.report.published.hype_edit_1 import published
    from local_bench.settle.hype import RETRY_CAP, REVIEW_SECONDS, REVIEW_USD_PER_HOUR, review_usd
    from local_bench.suites.hype_edit_1.results import read_judgements
    from local_bench.suites.sheets import read_costs

    review = review_usd(
        _amount("--review-usd-per-hour", usd_per_hour, REVIEW_USD_PER_HOUR),
        _amount("--review-seconds", seconds, REVIEW_SECONDS),
    )
    prices = None if costs is None else read_costs(costs)
    return published(read_judgements(file), prices, review, RETRY_CAP if cap is None else cap)


def _idea_bench(file: Path) -> "Published":
    from local_bench.report.published.idea_bench import published
    from local_bench.suites.idea_bench.results import read_results

    return published(read_results(file))


def _ice_bench(file: Path) -> "Published":
    from local_bench.report.published.ice_bench import published
    from local_bench.settle.ice import TASKS
    from local_bench.suites.ice_bench.results import read_eval_result

    return published(read_eval_result(file, TASKS))


def _amount(option: str, text: str | None, default: int) -> Fraction:
    """An option's number, read exactly. UserError where it is none, or below 0."""
    from decimal import Decimal, InvalidOperation

    from local_bench.core.errors import UserError

    if text is None:
        return Fraction(default)
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or not 0 <= value <= 10**9 or value.as_tuple().exponent < -30:  # type: ignore[operator]
        raise UserError(f"{option} is a number from 0 on, not {text!r}")
    return Fraction(value)
