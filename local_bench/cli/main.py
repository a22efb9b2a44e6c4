"""`local-bench`: the command line and its exit status.

Exit 0: done. 1: the run ended with failures, or a check did not hold. 2: wrong input. 130: interrupted.
"""

import os
import sys
from pathlib import Path

import click

from local_bench.cli.agreement import agreement, judges
from local_bench.cli.annotate import annotate
from local_bench.cli.catalogue import models, suites
from local_bench.cli.cluster import merge, slurm
from local_bench.cli.compare import compare
from local_bench.cli.doctor import doctor
from local_bench.cli.edge import DEBUG, abandon, interruptible, printable_streams, system_error, unexpected, without_nul
from local_bench.cli.exchange import export_run, import_files
from local_bench.cli.inspect import digest, list_runs, recover, report, verify
from local_bench.cli.options import PATH, Commands, examples
from local_bench.cli.output import say
from local_bench.cli.predictor import predictor
from local_bench.cli.prepare import extract, init
from local_bench.cli.reproduce import reproduce
from local_bench.cli.revise import revise
from local_bench.cli.run import demo, generate, judge, measure, plan, run, settle
from local_bench.cli.score import score
from local_bench.cli.view import view
from local_bench.core import __version__
from local_bench.core.environment import isolate, missing
from local_bench.core.errors import LocalBenchError, UserError
from local_bench.core.files import CONFIG_DIRS, is_dir


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "local-bench demo",
        "local-bench plan studio --gpu a6000",
        "local-bench run studio --limit 4",
        'eval "$(_LOCAL_BENCH_COMPLETE=bash_source local-bench)"   # completion in bash; zsh_source, fish_source',
    ),
)
@click.version_option(__version__, prog_name="local-bench")
@click.option(DEBUG, is_flag=True, expose_value=False, help="Print the traceback of an unexpected error.")
@click.option(
    "--config-dir",
    "config_dirs",
    multiple=True,
    metavar="FOLDER",
    type=PATH,
    help="A folder with custom model cards, rubrics and prices; may be given several times. ./local-bench/ is always"
    " included.",
)
def cli(config_dirs: tuple[Path, ...]) -> None:
    """Evaluate open-weight image generation models on your own GPUs.

    Generates the images (diffusers), judges them (a vision-language model served by vLLM), measures them (pyiqa, CLIP,
    DINO, pixels) and reports scores, revenue and cost. Only `models fetch`, `models add` and `suites fetch` use the
    network."""
    for folder in config_dirs:
        if not is_dir(folder):
            raise UserError(
                f"--config-dir {folder}: this folder does not exist: give one with models/ or prices.yaml in it"
            )
    if config_dirs:
        inherited = os.environ.get(CONFIG_DIRS)
        os.environ[CONFIG_DIRS] = os.pathsep.join(
            [*(str(folder.absolute()) for folder in config_dirs), *([inherited] if inherited else [])]
        )


SECTIONS: dict[str, list[click.Command]] = {
    "Start": [demo, init, doctor, models, suites],
    "Run": [plan, run, generate, measure, judge, settle, extract, revise, slurm, merge],
    "Look": [list_runs, view, report, compare],
    "People": [annotate, agreement, judges, predictor],
    "Papers": [score, reproduce, export_run, import_files],
    "Integrity": [verify, digest, recover],
}
CONTINUED = {*("demo", "run", "generate", "measure", "judge", "extract", "revise", "fetch", "train", "zero-shot")}
"""Commands that keep what they have done when they are interrupted."""
assert isinstance(cli, Commands)
cli.sections = SECTIONS
for section in SECTIONS.values():
    for command in section:
        cli.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit status; errors are printed to stderr as one sentence."""
    isolate()
    with interruptible(restore=arguments is not None):
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    printable_streams()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        status = cli.main(without_nul(words), prog_name="local-bench", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except LocalBenchError as e:
        say(f"local-bench: {e}")
        return e.exit_code
    except click.ClickException as e:
        say(f"Error: {e.format_message()}" if e.format_message() else "Error: wrong arguments")
        return 2
    except (click.Abort, KeyboardInterrupt) as e:
        continued = CONTINUED.intersection((e.__cause__ or e).args)
        say(f"local-bench: interrupted{'; run the same command again to continue' if continued else ''}")
        return 130
    except BrokenPipeError:
        abandon(sys.stdout)
        return 1
    except Exception as e:  # unexpected errors: one sentence instead of a traceback
        absent = missing(e.name) if isinstance(e, ModuleNotFoundError) else None
        if absent is not None:
            say(f"local-bench: {absent}")
            return absent.exit_code
        if DEBUG in words or os.environ.get("LOCAL_BENCH_DEBUG"):
            raise
        described = system_error(e) if isinstance(e, OSError) else None
        if described is not None:
            abandon(sys.stdout)
        message, status = described or (unexpected(e), 1)
        say(f"local-bench: {message}")
        return status
