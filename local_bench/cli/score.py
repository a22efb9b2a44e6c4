"""`local-bench score`: compute a benchmark's published numbers from its official result files."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import JSON, PATH, examples
from local_bench.cli.output import say, show, show_json
from local_bench.report.render import columns_text

if TYPE_CHECKING:
    from local_bench.suites.base import Suite


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
    help="servimage: the tasks (task_id, category, price_usd, deliverables; or the folder ServImage_Bench). "
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
def score(suite: str, files: tuple[Path, ...], as_json: bool, **options: Any) -> int:
    """Compute a benchmark's published numbers from its official result files.

    SUITE is ice-bench (eval_result.txt), idea-bench (results CSV), hype-edit-1 (judgements.json, one or several) or
    servimage (annotations.jsonl, one or several)."""
    from local_bench.core.errors import UserError
    from local_bench.suites.published import ScoreOptions

    scored = _scored_suite(suite, [name for name, value in options.items() if value is not None])
    if scored.scores_one_file and len(files) != 1:
        raise UserError(f"{suite} results are in one file, but {len(files)} are given: score each file separately")
    if options["costs"] is not None and options["api_prices"]:
        raise UserError("--costs and --api-prices both set the cost per image: give only one of them")
    result = scored.score(files, ScoreOptions(**options))
    if as_json:
        show_json(result.data)
    else:
        show("\n\n".join(map(columns_text, result.tables)))
    for note in result.notes:
        say(note)
    return 0


def _scored_suite(name: str, options: list[str]) -> "Suite":
    """UserError for a suite without result files, or an option of another suite."""
    from local_bench.core.errors import UserError, hint
    from local_bench.suites.registry import all_suites, suite, suite_names

    def scored() -> dict[str, Collection[str]]:
        return {other.name: other.score_options for other in all_suites() if other.score_options is not None}

    entry = suite(name) if name in suite_names() else None
    if entry is None or entry.score_options is None:
        suggestion = hint(name, scored(), f"use {', '.join(scored())}")
        raise UserError(f"suite {name!r} has no official result files: {suggestion}")
    for option in options:
        if option not in entry.score_options:
            owners = " and ".join(other for other, taken in scored().items() if option in taken)
            raise UserError(f"--{option.replace('_', '-')} applies only to {owners}: omit it for {name}")
    return entry
