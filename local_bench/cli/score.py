"""`local-bench score`: compute a benchmark's published numbers from its official result files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from local_bench.cli.options import JSON, PATH, examples
from local_bench.cli.output import say, show, show_json
from local_bench.core.messages import hint
from local_bench.report.render import aligned

if TYPE_CHECKING:
    from decimal import Decimal

    from local_bench.suites.hype_edit_1.published import Review
    from local_bench.suites.published import Published

Prices = Callable[[Iterable[str]], "tuple[dict[str, Decimal] | None, list[str]]"]
"""Maps the models of the result files to (US dollars per image, notes)."""
SUITES = ("ice-bench", "idea-bench", "hype-edit-1", "servimage")
OPTION_SUITES = {
    "--tasks": ("servimage", "idea-bench"),
    "--scores": ("servimage", "hype-edit-1"),
    "--api-prices": ("servimage", "hype-edit-1"),
    "--sensitivity": ("servimage", "hype-edit-1"),
    "--require-success": ("servimage",),
    "--costs": ("servimage", "hype-edit-1"),
    "--review-usd-per-hour": ("hype-edit-1",),
    "--review-seconds": ("hype-edit-1",),
    "--retry-cap": ("hype-edit-1",),
    "--raters": ("hype-edit-1",),
}


@click.command(
    epilog=examples(
        "local-bench score ice-bench eval_result.txt --json",
        "local-bench score idea-bench results.csv",
        "local-bench score hype-edit-1 judgements.json --costs costs.json",
        "local-bench score servimage annotations.jsonl --tasks tasks.jsonl --scores scores.jsonl",
    )
)
@click.argument("suite", metavar="SUITE")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=PATH)
@click.option(
    "--tasks",
    type=PATH,
    help="servimage: the orders (task_id, category, price_usd, deliverables; or the folder ServImage_Bench). "
    "idea-bench: the dataset folder; its meta.json files contain the task categories (not needed for the mini subset).",
)
@click.option(
    "--scores",
    type=PATH,
    help="servimage: BRF, VEQ and CNS per image, used to break ties in the competition. hype-edit-1: a judge's "
    "score per attempt (model, task_id, attempt, score), used to select the best of several.",
)
@click.option("--costs", type=PATH, help='servimage, hype-edit-1: {"model": US dollars per image}.')
@click.option("--api-prices", is_flag=True, default=None, help="Use the paper's prices instead of --costs.")
@click.option("--sensitivity", is_flag=True, default=None, help="Also report rankings under other assumptions.")
@click.option(
    "--require-success", is_flag=True, default=None, help="servimage: pay a winner for fully accepted tasks only."
)
@click.option("--review-usd-per-hour", metavar="USD", help="hype-edit-1: a reviewer's hourly wage [default: 50].")
@click.option("--review-seconds", metavar="S", help="hype-edit-1: review time per image [default: 20].")
@click.option(
    "--retry-cap", metavar="N", type=click.IntRange(1, 1000), help="hype-edit-1: maximum attempts [default: 4]."
)
@click.option(
    "--raters",
    is_flag=True,
    default=None,
    help="hype-edit-1: each file is from one rater; decide by majority.",
)
@JSON
def score(
    suite: str,
    files: tuple[Path, ...],
    tasks: Path | None,
    scores: Path | None,
    costs: Path | None,
    api_prices: bool | None,
    sensitivity: bool | None,
    require_success: bool | None,
    review_usd_per_hour: str | None,
    review_seconds: str | None,
    retry_cap: int | None,
    raters: bool | None,
    as_json: bool,
) -> int:
    """Compute a benchmark's published numbers from its official result files.

    SUITE is ice-bench (eval_result.txt), idea-bench (results CSV), hype-edit-1 (judgements.json, one or several) or
    servimage (annotations.jsonl, one or several)."""
    from local_bench.core.errors import UserError

    options = {
        "--tasks": tasks,
        "--scores": scores,
        "--costs": costs,
        "--api-prices": api_prices,
        "--sensitivity": sensitivity,
        "--require-success": require_success,
        "--review-usd-per-hour": review_usd_per_hour,
        "--review-seconds": review_seconds,
        "--retry-cap": retry_cap,
        "--raters": raters,
    }
    _check(suite, options)
    if suite in ("ice-bench", "idea-bench") and len(files) != 1:
        raise UserError(f"{suite} results are in one file, but {len(files)} are given: score each file separately")
    match suite:
        case "servimage":
            prices = _prices(suite, costs, api_prices)
            result = _servimage(files, tasks, scores, prices, bool(require_success), bool(sensitivity))
        case "hype-edit-1":
            prices = _prices(suite, costs, api_prices)
            review = _review(review_usd_per_hour, review_seconds, retry_cap)
            result = _hype_edit_1(files, scores, prices, review, bool(sensitivity), bool(raters))
        case "idea-bench":
            result = _idea_bench(files[0], tasks)
        case _:
            result = _ice_bench(files[0])
    if as_json:
        show_json(result.data)
    else:
        show("\n\n".join(aligned(header, rows) for header, rows in result.tables))
    for note in result.notes:
        say(note)
    return 0


def _check(suite: str, options: Mapping[str, object]) -> None:
    """UserError for an unknown suite or an option of another suite."""
    from local_bench.core.errors import UserError

    if suite not in SUITES:
        suggestion = hint(suite, SUITES, f"use {', '.join(SUITES)}")
        raise UserError(f"suite {suite!r} has no official result files: {suggestion}")
    stray = next(
        (flag for flag, value in options.items() if value is not None and suite not in OPTION_SUITES[flag]), None
    )
    if stray:
        raise UserError(f"{stray} applies only to {' and '.join(OPTION_SUITES[stray])}: omit it for {suite}")


def _prices(suite: str, costs: Path | None, api_prices: bool | None) -> "Prices":
    from local_bench.core.errors import UserError
    from local_bench.suites.api_prices import api_prices as paper_prices
    from local_bench.suites.json_io import read_costs

    if costs is not None and api_prices:
        raise UserError("--costs and --api-prices both set the cost per image: give only one of them")
    if api_prices:
        return paper_prices(suite).of
    user_costs = None if costs is None else read_costs(costs)
    return lambda models: (user_costs, [])


def _servimage(
    files: tuple[Path, ...],
    tasks: Path | None,
    scores: Path | None,
    prices: "Prices",
    require_success: bool,
    sensitivity: bool,
) -> "Published":
    from local_bench.core.errors import UserError
    from local_bench.suites.servimage.published import published
    from local_bench.suites.servimage.results import check_images, read_annotations, read_orders, read_scores

    if tasks is None:
        raise UserError("servimage needs the prices of its orders: give the orders with --tasks")
    if sensitivity and scores is None:
        raise UserError("--sensitivity varies the threshold on the judge's scores: give them with --scores")
    orders = read_orders(tasks)
    annotations = read_annotations(files)
    images = annotations.images
    ratings = None if scores is None else read_scores(scores)
    check_images([*images, *(ratings or [])], orders)
    usd, notes = prices(annotations.models)
    result = published(images, orders, ratings, usd, require_success, sensitivity, annotations.models)
    return replace(result, notes=[*result.notes, *notes])


def _review(usd_per_hour: str | None, seconds: str | None, cap: int | None) -> "Review":
    from local_bench.suites.hype_edit_1.published import Review

    default = Review()
    return Review(
        _amount("--review-usd-per-hour", usd_per_hour, default.usd_per_hour),
        _amount("--review-seconds", seconds, default.seconds),
        default.retry_cap if cap is None else cap,
    )


def _hype_edit_1(
    files: tuple[Path, ...],
    scores: Path | None,
    prices: "Prices",
    review: "Review",
    sensitivity: bool,
    raters: bool,
) -> "Published":
    from local_bench.core.errors import UserError
    from local_bench.suites.hype_edit_1.published import open_votes, published
    from local_bench.suites.hype_edit_1.results import read_attempt_scores, read_judgements, read_raters

    judgements, undecided = read_raters(files) if raters else (read_judgements(files), [])
    usd, notes = prices(judgements.models)
    if sensitivity and usd is None:
        raise UserError("--sensitivity varies the effective cost: give --costs or --api-prices")
    ratings = None if scores is None else read_attempt_scores(scores)
    result = published(judgements, usd, review, ratings, sensitivity)
    result = replace(result, notes=[*result.notes, *notes])
    if not raters:
        return result
    votes = open_votes(len(files), undecided)
    return replace(result, data=result.data | votes.data, notes=[*result.notes, *votes.notes])


def _idea_bench(file: Path, folder: Path | None) -> "Published":
    from local_bench.suites.idea_bench.published import published
    from local_bench.suites.idea_bench.results import read_results

    rows = read_results(file)
    if folder is not None:
        from local_bench.suites.idea_bench.tasks import read_categories

        categories = read_categories(folder, say)
        rows = [replace(row, category=categories.get(row.task_id)) for row in rows]
    return published(rows)


def _ice_bench(file: Path) -> "Published":
    from local_bench.settle.ice import LIMITS, TASKS
    from local_bench.suites.ice_bench.published import published
    from local_bench.suites.ice_bench.results import read_eval_result

    return published(read_eval_result(file, TASKS, LIMITS))


def _amount(option: str, text: str | None, default: Fraction) -> Fraction:
    """An option's value as an exact number. UserError if it is not a number or is negative."""
    from decimal import Decimal, InvalidOperation

    from local_bench.core.errors import UserError

    if text is None:
        return default
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or not 0 <= value <= 10**9 or value.adjusted() < -30:
        raise UserError(f"{option} must be a number that is not negative, not {text!r}")
    return Fraction(value)
