"""`local-bench init` and `extract`: a config and the task files' missing fields, before a run."""

from pathlib import Path

import click

from local_bench.cli.options import CONFIG, JSON, PATH, examples, overrides, suites_completed
from local_bench.cli.output import progress, quoted, say, show, show_json

_TEMPLATE = """\
# {title}
name: {name}
suite: {{name: {name}}}
models:
  - {{card: flux1-schnell}}  # `local-bench models list` has all
judge: {{card: qwen3-vl-8b}}
metrics: [piqe, entropy]
"""


@click.command(
    epilog=examples(
        "local-bench init studio                          # writes studio.yaml",
        "local-bench init servimage --path ServImage_Bench --out ours.yaml",
    )
)
@click.argument("suite_name", metavar="SUITE", shell_complete=suites_completed)
@click.option("--path", type=PATH, help="The benchmark's file or folder, if it does not ship with local-bench.")
@click.option("--out", type=PATH, help="The new file [default: SUITE.yaml].")
@JSON
def init(suite_name: str, path: Path | None, out: Path | None, as_json: bool) -> int:
    """Write a run config for SUITE into this folder, to be edited.

    `plan` then estimates the run, `models fetch` downloads what it needs, and `run` executes it."""
    from local_bench.core.errors import ConfigError, UserError
    from local_bench.core.files import configs_dir, read_text, write_atomic
    from local_bench.core.yamlfile import yaml_text
    from local_bench.suites.registry import suite

    entry, target = suite(suite_name), out or Path(f"{suite_name}.yaml")
    if target.exists():
        raise UserError(f"{target} exists: give another file with --out")
    if entry.shipped and path:
        raise UserError(f"the suite {suite_name!r} includes its tasks: leave --path out")
    shipped = (configs_dir() / "runs" / f"{entry.name}{ending}.yaml" for ending in ("", "-open-weights"))
    shipped_text = next((read_text(file, ConfigError, missing="reinstall") for file in shipped if file.is_file()), None)
    text = shipped_text or _TEMPLATE.format(title=entry.title, name=entry.name)
    if not entry.shipped:
        value = yaml_text(str(path or "CHANGE-ME"), default_flow_style=True).removesuffix("...\n").strip()
        line = f"suite: {{name: {entry.name}"
        text = text.replace(f"{line}}}", f"{line}, path: {value}}}  # {entry.files}", 1)
    write_atomic(target, text.encode())
    if as_json:
        show_json({"config": str(target)})
    else:
        file = quoted(target)
        show(f"{target}: `local-bench plan {file}` estimates it, `local-bench run {file}` runs it")
    return 0


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
        use = f"run with --set suite.written={quoted(out)}" if out.stat().st_size else "it adds nothing to a run"
        show(f"{result.n} tasks added to {out}, which already had {result.n_existing} of these: {use}")
    for task_id, reason in list(result.refused.items())[:20]:
        say(f"{task_id}: {reason}")
    return 1 if result.refused else 0
