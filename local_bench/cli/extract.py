"""`local-bench extract`: what a judge writes about a suite's tasks before a run."""

from pathlib import Path

import click

from local_bench.cli.output import progress, say, show, show_json


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write, or to go on with.")
@click.option("--rules", is_flag=True, help="Hard rules of ServImage's orders (size, aspect, file) instead.")
@click.option("--set", "settings", multiple=True, metavar="KEY.SUB=VALUE", help="Lay a value over the config.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def extract(config: Path, out: Path, rules: bool, settings: tuple[str, ...], as_json: bool) -> int:
    """Have CONFIG's judge write down what the tasks' own files have not.

    Evaluation points for ServImage's orders, checklists for HYPE-EDIT-1, prompts for IDEA-Bench's models that take
    words alone; with --rules the hard rules that ServImage's briefs state. The same OUT can hold both. Then run with
    suite.written=OUT."""
    from local_bench.runs.config import load_config
    from local_bench.runs.enrichment import write_down

    loaded = load_config(config, settings)
    with progress() as shown:
        found = write_down(loaded, out, shown, "rules_question" if rules else "enrichment_question")
    if as_json:
        show_json({"written": str(out), "n": found.n, "n_there": found.n_there, "refused": found.refused})
    else:
        show(f"{found.n} tasks written down in {out}, {found.n_there} were there: run with --set suite.written={out}")
    for task_id, reason in list(found.refused.items())[:20]:
        say(f"{task_id}: {reason}")
    return 1 if found.refused else 0
