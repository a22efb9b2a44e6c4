"""`local-bench`: the command line, its exit status, and unexpected errors: one sentence for the user, and a log with
the traceback.

Exit 0: done. 1: the run ended with failures, or a check did not hold. 2: wrong input. 130: interrupted.
"""

import errno
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from local_bench.cli.agreement import agreement, judges
from local_bench.cli.annotate import annotate
from local_bench.cli.catalogue import models, suites
from local_bench.cli.cluster import merge, slurm
from local_bench.cli.compare import compare
from local_bench.cli.doctor import doctor
from local_bench.cli.exchange import export_run, import_files, score
from local_bench.cli.inspect import digest, list_runs, recover, report, verify, view
from local_bench.cli.options import PATH, Commands, examples
from local_bench.cli.output import say
from local_bench.cli.predictor import predictor
from local_bench.cli.reproduce import reproduce
from local_bench.cli.revise import revise
from local_bench.cli.run import demo, extract, generate, init, judge, measure, plan, run, settle
from local_bench.core import __version__
from local_bench.core.environment import entry_points, isolate, missing
from local_bench.core.errors import LocalBenchError, UserError, without_secrets
from local_bench.core.files import CONFIG_DIRS, reason, user_config_dirs

DEBUG = "--debug"


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
        if not os.path.isdir(folder):
            raise UserError(
                f"--config-dir {folder}: this folder does not exist: give one with models/ or prices.yaml in it"
            )
    if config_dirs:
        inherited = os.environ.get(CONFIG_DIRS)
        os.environ[CONFIG_DIRS] = os.pathsep.join(
            [*(str(folder.absolute()) for folder in config_dirs), *([inherited] if inherited else [])]
        )
    if absent := next((folder for folder in user_config_dirs() if not os.path.isdir(folder)), None):
        raise UserError(f"{CONFIG_DIRS}: the folder {absent} does not exist: correct it, or unset the variable")


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
    with interruptible(restore=arguments is not None):
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    printable_streams()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        isolate()
        if (with_nul := next((word for word in words if "\0" in word), None)) is not None:
            raise UserError(f"the argument {with_nul!r} contains NUL, which no path or name has: remove it")
        status = cli.main(words, prog_name="local-bench", standalone_mode=False)
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
        abandon_stdout()
        return 1
    except Exception as e:  # unexpected errors: one sentence instead of a traceback
        absent = missing(e.name) if isinstance(e, ModuleNotFoundError) else None
        if absent is not None:
            say(f"local-bench: {absent}")
            return absent.exit_code
        if DEBUG in words or os.environ.get("LOCAL_BENCH_DEBUG"):
            raise
        if not isinstance(e, OSError) or e.errno is None:
            say(f"local-bench: {unexpected(e)}")
            return 1
        abandon_stdout()  # an error of the file system or the machine that no reader or writer has converted
        where = f"{e.filename}: " if isinstance(e.filename, str | os.PathLike) else ""
        say(f"local-bench: {where}{reason(e)}: check the path, its permissions, free space and limits (`ulimit -a`)")
        return 2 if e.errno in _OF_A_PATH else 1


_OF_A_PATH = {*(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO)}
_KEPT = 20
"""Number of crash logs that are kept."""


def crash_log(error: BaseException) -> Path | None:
    """Write the traceback to a new file in the cache, else in the temporary folder; None if neither is writable."""
    from local_bench.core.files import cache_dir

    text = without_secrets("".join(traceback.format_exception(error)))
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for parent in (cache_dir, lambda: Path(tempfile.gettempdir())):
        try:
            folder = parent() / "crashes"
            folder.mkdir(parents=True, exist_ok=True)
            for old in sorted(folder.glob("*.txt"))[: -_KEPT + 1]:
                old.unlink(missing_ok=True)
            (folder / name).write_text(text, "utf-8", "backslashreplace")
        except (OSError, RuntimeError):
            continue
        return folder / name
    return None


def unexpected(error: BaseException) -> str:
    """The sentence about an unexpected error; its traceback is in a file."""
    text = str(error)
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and "failed to map" in text):
        return "there is not enough memory: close other programs, raise `ulimit -v`, or use a smaller batch size"
    if isinstance(error, RuntimeError) and "start new thread" in text:
        return "this user cannot start another thread: close other programs, or raise `ulimit -u`"
    log = crash_log(error)
    where = f"its traceback is in {log}" if log else "its traceback could not be written: use --debug"
    groups = (f"local_bench.{kind}" for kind in ("families", "judges", "metrics", "rubrics", "suites"))
    packages = {re.split("[.:]", point.value)[0] for group in groups for point in entry_points(group)}
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    if own := [module for module in modules if module.partition(".")[0] in packages]:
        what = f"{type(error).__name__}: {without_secrets(text)}"
        return f"error in {own[-1]} ({what}); {where}: correct or remove that package"
    return (
        f"unexpected error in local-bench; {where}; nothing that was committed is lost; please report it with this file"
    )


def printable_streams() -> None:
    """Let stdout and stderr escape what their encoding lacks, and replace closed ones, so that printing cannot fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif getattr(stream, "errors", None) in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def abandon_stdout() -> None:
    """Redirect stdout, which cannot be written, to /dev/null, so that the interpreter's flush at exit does not fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def interruptible(restore: bool) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of SIGNALS, and ignore the following ones, so that nothing interrupts the
    end of child processes and the closing of the ledger. A signal that is ignored already (nohup) stays ignored. With
    `restore`, the handlers before are set again at the end."""

    def first(number: int, frame: FrameType | None) -> None:
        for interrupting in SIGNALS:
            signal.signal(interrupting, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in before.items() if restore else ():
            signal.signal(number, handler)
