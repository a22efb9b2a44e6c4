"""`local-bench`: the commands, and how they end.

Exit 0: done. 1: the run ended with failures, or a check did not hold. 2: the input is wrong. 130: interrupted.
"""

import os
import signal
import sys
from types import FrameType

import click

from local_bench.cli.agreement import agreement
from local_bench.cli.catalogue import models, suites
from local_bench.cli.compare import compare
from local_bench.cli.doctor import doctor
from local_bench.cli.exchange import export_run, import_files
from local_bench.cli.extract import extract
from local_bench.cli.inspect import digest, recover, report, verify
from local_bench.cli.output import say
from local_bench.cli.reproduce import reproduce
from local_bench.cli.revise import revise
from local_bench.cli.run import demo, generate, judge, measure, plan, run, settle
from local_bench.cli.score import score
from local_bench.core.environment import isolate
from local_bench.core.errors import LocalBenchError
from local_bench.core.paths import CONFIG_DIRS
from local_bench.core.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="local-bench")
@click.option(
    "--config-dir",
    "config_dirs",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="A folder with model cards (models/*.yaml) and prices of your own; may be given several times. ./local-bench/"
    " is read without being named.",
)
def cli(config_dirs: tuple[str, ...]) -> None:
    """Benchmarks open-weight image models on your own GPUs: makes the images, has them judged and measured, and says
    what they earn. No proprietary API; only `models fetch` and `suites fetch` use the network."""
    if config_dirs:
        before = os.environ.get(CONFIG_DIRS)
        os.environ[CONFIG_DIRS] = os.pathsep.join([*config_dirs, *([before] if before else [])])


for command in (
    *(demo, run, plan, generate, measure, judge, settle),
    *(extract, revise, score, reproduce, export_run, import_files, report, agreement, compare, digest, verify, recover),
    *(models, suites, doctor),
):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status; whatever goes wrong is said in one sentence on stderr."""
    isolate()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = cli.main(arguments, prog_name="local-bench", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except LocalBenchError as e:
        say(f"local-bench: {e}")
        return e.exit_code
    except click.ClickException as e:
        e.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        say("local-bench: interrupted; the same command goes on from here")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _terminated(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends us as Ctrl-C does: children are stopped, the ledger is whole."""
    raise KeyboardInterrupt
