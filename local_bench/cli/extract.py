"""`local-bench extract`: generate missing fields of a suite's task files with a judge, before a run."""

from pathlib import Path

import click

from local_bench.cli.options import CONFIG, JSON, PATH, examples, overrides
from local_bench.cli.output import progress, say, show, show_json


@click.command(
    epilog=examples(
        "local-bench extract my.yaml --out points.jsonl", "local-bench extract my.yaml --out points.jsonl --rules"
    )
)
@CONFIG
@click.option("--out", required=True, type=PATH, help="The file to write; continued if it exists.")
@click.option("--rules", is_flag=True, help="Extract hard rules (size, aspect, file type) from ServImage's briefs.")
@overrides
@JSON
def extract(config: Path, out: Path, rules: bool, settings: tuple[str, ...], as_json: bool) -> int:
    """Generate fields that the task files lack, with CONFIG's judge.

    Evaluation points for ServImage, checklists for HYPE-EDIT-1, prompts for IDEA-Bench's text-to-image models; with
    --rules the hard rules stated in ServImage's briefs. One OUT can contain both. Then run with suite.written=OUT."""
    from local_bench.runs.config import load_config
    from local_bench.runs.enrichment import write_enrichment

    loaded = load_config(config, settings)
    with progress() as bars:
        result = write_enrichment(loaded, out, bars, "rules_question" if rules else "enrichment_question")
    if as_json:
        show_json({"written": str(out), "n": result.n, "n_there": result.n_existing, "refused": result.refused})
    else:
        show(
            f"{result.n} tasks added to {out}, which already had {result.n_existing}: run with --set "
            f"suite.written={out}"
        )
    for task_id, reason in list(result.refused.items())[:20]:
        say(f"{task_id}: {reason}")
    return 1 if result.refused else 0
