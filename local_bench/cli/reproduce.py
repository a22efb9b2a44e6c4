"""`local-bench reproduce`: a table or figure of a paper, from runs or result files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import FORMAT, PATH
from local_bench.cli.output import say, say_written, show, show_result
from local_bench.report.render import aligned

if TYPE_CHECKING:
    from local_bench.report.papers.contents import Entry
    from local_bench.report.papers.inputs import Options


class _ReproduceCommand(click.Command):
    """A command whose help ends with the tables and figures of each paper."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from local_bench.report.papers.contents import SHIPPED

        rows = []
        for contents in SHIPPED:
            available = [entry for entry in contents if not entry.reason]
            kinds = {
                kind: [str(entry.number) for entry in available if entry.kind == kind] for kind in ("table", "figure")
            }
            listed = "; ".join(f"{kind}s {', '.join(numbers)}" for kind, numbers in kinds.items() if numbers)
            rows.append((contents[0].paper, listed))
        with formatter.section("Examples"):
            formatter.write_text("local-bench reproduce servimage")
            formatter.write_text("local-bench reproduce servimage table-2 runs/a runs/b --format latex")
        with formatter.section("Papers"):
            formatter.write_dl(rows)


@click.command(cls=_ReproduceCommand)
@click.argument("paper", metavar="PAPER")
@click.argument("name", metavar="[TABLE]", required=False)
@click.argument("paths", metavar="[RUN|FILE…]", nargs=-1, type=PATH)
@FORMAT
@click.option("--json", "as_json", is_flag=True, help="Same as --format json; also applies to the list of tables.")
@click.option("--out", type=PATH, help="The file to write; a figure as .svg, .pdf or .png.")
@click.option("--people", type=PATH, multiple=True, metavar="FILE|RUN", help="Human annotations; repeatable.")
@click.option("--predictor", type=PATH, multiple=True, metavar="DIR", help="Trained by `predictor train`; repeatable.")
@click.option(
    "--predictions", type=PATH, multiple=True, metavar="FILE", help="Of `predictor zero-shot` or `apply`; repeatable."
)
@click.option("--tasks", type=PATH, help="For result files. servimage: the tasks. idea-bench: the dataset folder.")
@click.option("--scores", type=PATH, help="For result files of servimage: BRF, VEQ and CNS per image.")
@click.option("--costs", type=PATH, help='{"model": US dollars per image}, instead of measured costs.')
@click.option("--api-prices", is_flag=True, help="The paper's prices of APIs, instead of measured costs.")
@click.option("--allow-unlike", is_flag=True, help="Also runs that differ in judges, rubrics, acceptance or tasks.")
@click.option(
    "--intervals", is_flag=True, help="hype-edit-1: also unbiased values with 95 % intervals for tasks like these."
)
@click.option("--raters", is_flag=True, help="hype-edit-1: each result file is from one rater; decide by majority.")
@click.option("--by-type", is_flag=True, help="hype-edit-1, table 4: one row per model and task type.")
@click.option("--task", metavar="ID", help="hype-edit-1, figure 1: the task [default: the first].")
def reproduce(
    paper: str,
    name: str | None,
    paths: tuple[Path, ...],
    form: str,
    as_json: bool,
    out: Path | None,
    costs: Path | None,
    **of_paper: Any,
) -> int:
    """Print a table or draw a figure of a paper, from runs or result files.

    PAPER is a benchmark, below or of a package; without TABLE, list its tables and figures. TABLE is table-2 or
    figure-3, for example. The models of all RUNs, or of all result FILEs, become rows. A figure without --out prints
    its data."""
    from local_bench.core.errors import UserError
    from local_bench.report.papers.contents import entries, entry
    from local_bench.report.papers.inputs import Options, opened
    from local_bench.suites.task_files import read_costs

    if name is None:
        listed = entries(paper)
        values = [{key: getattr(item, key) for key in ("name", "title", "command", "reason")} for item in listed]
        rows = [[item.name, item.title, item.command or f"not available: {item.reason}"] for item in listed]
        return show_result(values, aligned(["", "content", "command"], rows), as_json)
    form = "json" if as_json else form
    selected = entry(paper, name)
    usd = None if costs is None else read_costs(costs)
    if usd is not None and of_paper["api_prices"]:
        raise UserError("--costs and --api-prices both set the cost per image: give only one of them")
    options = Options(costs=usd, **of_paper)
    _check(selected, options, out)
    with opened(paper, paths, options, selected.keeps_judge) as inputs:
        result = selected.make(inputs)
        say_written(*inputs.runs)
    from local_bench.core.files import write_atomic
    from local_bench.report.panels import Figure
    from local_bench.report.papers.draw import draw_all
    from local_bench.report.render import FORMATS

    data = result.data if isinstance(result, Figure) else result
    if out is not None and isinstance(result, Figure):
        draw_all(result, [out])
    elif out is not None:
        write_atomic(out, (FORMATS[form](data) + "\n").encode())
    else:
        show(FORMATS[form](data))
    say(*data.notes)
    return 0


_NEEDED = {
    "people": "--people FILE: human annotations in the format described by `local-bench agreement --help`",
    "predictor": "--predictor DIR: a folder written by `local-bench predictor train`",
}


def _check(selected: "Entry", options: "Options", out: Path | None) -> None:
    """UserError for an option that does not apply, a missing required option, and an unsupported figure format."""
    from local_bench.core.errors import UserError
    from local_bench.report.papers.draw import check_suffix

    if selected.reason:
        return  # reported later, whatever the options
    used = [option for option, value in vars(options).items() if value and option != "allow_unlike"]
    stray = next((option for option in used if option not in selected.options), None)
    if stray is not None:
        raise UserError(
            f"--{stray.replace('_', '-')} does not apply to {selected.name} of {selected.paper}: leave it out"
        )
    missing = next((option for option in selected.required if option not in used), None)
    if missing is not None:
        raise UserError(f"{selected.name} of {selected.paper} ({selected.title}) needs {_NEEDED[missing]}")
    if selected.either and not set(selected.either) & set(used):
        needed = ", or ".join(_NEEDED[option] for option in selected.either)
        raise UserError(f"{selected.name} of {selected.paper} ({selected.title}) needs {needed}")
    if out is not None and selected.kind == "figure":
        check_suffix(out)
