"""`local-bench annotate`: human annotation of a run's images."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import JSON, PATH, RUN, RUNS, Commands, examples, opened
from local_bench.cli.output import quoted, say, show_result
from local_bench.core.errors import count
from local_bench.core.table import Column
from local_bench.report.render import aligned, interval, printed

if TYPE_CHECKING:
    from local_bench.annotation.database import AnnotationDatabase
    from local_bench.annotation.summary import Summary


class _Annotate(Commands):
    """`annotate RUN…` starts the server; other commands are named."""

    default_command = "serve"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in ("-h", "--help", *self.commands):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Annotate,
    epilog=examples(
        "local-bench annotate runs/studio                        # on this machine",
        "local-bench annotate runs/hype --protocol pass-fail --annotators raters.yaml --host 10.0.0.5 --port 8000",
        "local-bench annotate serve --help                       # all options",
        "local-bench annotate status runs/studio --json",
    ),
)
def annotate() -> None:
    """Annotate a run's images with people: accept or reject, scores, questions, or pairs.

    `annotate RUN…` starts a web server and prints a personal link for every annotator. Answers are stored in
    RUN/annotations.sqlite and used by `settle`, `agreement` and `reproduce` with --people RUN."""


@annotate.command(
    epilog=examples(
        "local-bench annotate runs/studio",
        "local-bench annotate runs/studio --questions ask.jsonl     # the sample of settle --plan-labels",
        "local-bench annotate runs/a runs/b --protocol pairwise --annotators raters.yaml",
        "local-bench annotate runs/studio --annotators raters.yaml --base https://annotate.lab.org   # behind a proxy",
    )
)
@RUNS
@click.option(
    "--protocol",
    metavar="NAME|FILE",
    help="accept, pass-fail, scores, pairwise, points, … [default: as before; at first, the suite's].",
)
@click.option("--annotators", metavar="FILE", type=PATH, help="YAML file with the annotators' names and roles.")
@click.option(
    "--questions",
    metavar="FILE|all",
    type=PATH,
    help="Only the images in this file of settle --plan-labels [default: as before; at first, all].",
)
@click.option(
    "--gold", metavar="FILE", type=PATH, help="Known answers, in the format of annotations, to check annotators."
)
@click.option(
    "--repeats", type=click.FloatRange(0, 0.5), help="Fraction of items shown again [default: the protocol's]."
)
@click.option("--new", is_flag=True, help="Begin --protocol on a run that has answers by another one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need --annotators.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0: any free port.")
@click.option("--base", metavar="URL", help="Address that annotators open, of a proxy with HTTPS or of a tunnel.")
@JSON
def serve(
    run_dirs: tuple[Path, ...],
    protocol: str | None,
    annotators: Path | None,
    questions: Path | None,
    gold: Path | None,
    repeats: float | None,
    new: bool,
    host: str,
    port: int,
    base: str | None,
    as_json: bool,
) -> int:
    """Start the annotation server for the images of RUN…, until Ctrl-C.

    Answers are stored in the first RUN. Every annotator has a personal link; it is printed once, when it is created.
    Started again, the server continues: without --protocol, --questions, --gold or --repeats these are as before."""
    from local_bench.annotation.database import SERVED_BASE, SERVED_PROTOCOL
    from local_bench.annotation.exchange import open_session, protocol_to_serve
    from local_bench.annotation.serve import LOOPBACK, address_of, listening_socket, lock_annotations
    from local_bench.annotation.serve import serve as run_server
    from local_bench.annotation.session import load_people, new_links
    from local_bench.core.errors import UserError

    people = load_people(annotators) if annotators else {}
    with ExitStack() as stack:
        runs = stack.enter_context(opened(run_dirs))
        stack.enter_context(lock_annotations(run_dirs[0]))
        chosen = protocol_to_serve(runs[0], protocol, new)
        bound = stack.enter_context(listening_socket(host, port))
        address = address_of(bound, host, base)
        session = open_session(runs, chosen, () if questions == Path("all") else questions, gold, repeats)
        database = stack.enter_context(session.database)
        tokens = new_links(database, people, host in LOOPBACK)
        everyone = database.annotators()
        if not any(person.has_link for person in everyone):
            raise UserError(f"--host {host} requires annotators with personal links: give them with --annotators FILE")
        for person in everyone:
            session.queue.add(person.name, person.role)
        links = {name: f"{address.base}/a/{token}" for name, token in tokens.items()}
        before, n = database.meta(SERVED_BASE), len(session.queue.items)
        database.set_meta(SERVED_BASE, address.base)
        database.set_meta(SERVED_PROTOCOL, chosen.id)

        def ready() -> None:
            listed = [{"name": a.name, "role": a.role, "link": links.get(a.name)} for a in everyone]
            values = {"url": address.base, "protocol": chosen.id, "n_items": n, "annotators": listed}
            rows = [
                [a.name, a.role, links.get(a.name) or ("(has a link)" if a.has_link else "(has no link)")]
                for a in everyone
            ]
            show_result(values, aligned(["annotator", "role", "personal link"], rows), as_json)
            if session.n_missing:
                say(f"local-bench: {count(session.n_missing, 'images are')} missing and cannot be annotated")
            if before not in (None, address.base) and any(a.has_link and a.name not in links for a in everyone):
                say(f"local-bench: earlier links begin with {before}, where the server is not now: see --base, --port")
            if host not in LOOPBACK and not address.hosts and not base:
                say("local-bench: links have this machine's address; if it has another one, give it with --base")
            if host not in LOOPBACK and address.base.startswith("http:"):
                say("local-bench: links are sent without encryption: use a trusted network, or a proxy with HTTPS")
            listens = f" (port {bound.getsockname()[1]} of {host})" if base else ""
            items = count(n, "items")
            say(f"local-bench: {items}, protocol {chosen.id}, on {address.base}{listens}; Ctrl-C stops the server")

        run_server(session, bound, address, ready)
    say(f"local-bench: stopped; `local-bench annotate status {quoted(run_dirs[0])}` shows the state")
    return 0


@annotate.command(
    epilog=examples("local-bench annotate status runs/studio", "local-bench annotate status runs/a --json")
)
@RUN
@JSON
def status(run_dir: Path, as_json: bool) -> int:
    """Show coverage, agreement, pace and adjudication of RUN's annotation."""
    from local_bench.annotation.exchange import stored_sessions
    from local_bench.annotation.summary import summary

    with _database(run_dir) as database:
        summaries = [summary(session) for session in stored_sessions(database)]
    data = {"run_dir": str(run_dir), "protocols": [asdict(numbers) for numbers in summaries]}
    return show_result(data, "\n\n".join(map(_status_text, summaries)), as_json)


_ANNOTATORS = (
    *(Column("name", "annotator"), Column("role", "role"), Column("n_answers", "answers"), Column("n_open", "open")),
    *(Column("n_cannot_tell", "cannot tell"), Column("median_s", "median", ".1f", unit="s"), Column("outlier", "pace")),
    *(Column("agreement.value", "agreement", ".3f"), Column("kappa.value", "kappa", ".3f")),
    *(Column("repeats.value", "repeats", ".3f"), Column("gold.value", "known", ".3f")),
)
_QUESTIONS = (
    *(Column("name", "question"), Column("n_units", "images"), Column("raw.value", "raw agreement", ".3f")),
    *(Column("kappa.value", "kappa", ".3f"), Column("alpha.value", "alpha", ".3f")),
)


def _status_text(numbers: "Summary") -> str:
    counts = (
        f"{numbers.protocol}: {numbers.n_complete} of {count(numbers.n_items, 'items have')} "
        f"{count(numbers.raters, 'answers')}; {numbers.n_disputed} wait for adjudication, "
        f"{numbers.n_adjudicated} are adjudicated"
    )
    questions = [printed(_QUESTIONS, numbers.fields)] if numbers.fields else []
    return "\n\n".join([counts, printed(_ANNOTATORS, numbers.annotators), *questions])


@annotate.command(
    epilog=examples(
        "local-bench annotate export runs/studio --out labels.jsonl",
        "local-bench annotate export runs/a runs/b --out all.csv",
        "local-bench annotate export runs/hype --format hype-edit-1 --out people/",
    )
)
@RUNS
@click.option("--out", required=True, type=PATH, help="The new file (.jsonl or .csv) or, with --format, folder.")
@click.option("--format", "layout", metavar="NAME", help="A benchmark's own layout: one folder per annotator.")
@click.option("--protocol", metavar="NAME", help="Only annotations of this protocol [default: all].")
@JSON
def export(run_dirs: tuple[Path, ...], out: Path, layout: str | None, protocol: str | None, as_json: bool) -> int:
    """Write RUN's annotations: JSONL for --people, CSV with everything (also of runs that were annotated together, that
    with the answers first), or a benchmark's layout."""
    from local_bench.analysis.official import export_people
    from local_bench.annotation.exchange import write_csv, write_jsonl
    from local_bench.core.errors import UserError

    with opened(run_dirs) as runs:
        if len(runs) > 1 and (layout or out.suffix != ".csv"):
            raise UserError(f"--out {out}: only a .csv file is of several runs: export one run at a time")
        if layout is not None:
            files = export_people(runs[0], layout, out)
            result: dict[str, Any] = {"out": str(out), "files": [str(file) for file in files]}
            text = "\n".join(str(file) for file in files)
        elif out.suffix in (".jsonl", ".csv"):
            n = write_csv(runs, out, protocol) if out.suffix == ".csv" else write_jsonl(runs[0], out, protocol)
            result, text = {"out": str(out), "n": n}, f"{count(n, 'lines')} in {out}"
        else:
            raise UserError(f"--out {out}: give a file that ends in .jsonl or .csv, or a layout with --format")
    return show_result(result, text, as_json)


@annotate.command("import", epilog=examples("local-bench annotate import runs/studio labels.jsonl --protocol accept"))
@RUN
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--protocol", required=True, metavar="NAME|FILE", help="The protocol of the annotations.")
@JSON
def import_(run_dir: Path, file: Path, protocol: str, as_json: bool) -> int:
    """Store the annotations in FILE (JSONL, as for --people) with RUN's own."""
    from local_bench.annotation.exchange import import_answers
    from local_bench.annotation.protocol import load_protocol
    from local_bench.annotation.serve import lock_annotations
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run, lock_annotations(run_dir):
        imported = import_answers(run, load_protocol(protocol), file)
    for name, n in imported.left_out.items():
        say(f"local-bench: {name} of {count(n, 'lines')} is no answer by protocol {protocol} and was left out")
    return show_result({k: n for k, n in vars(imported).items() if k != "left_out"}, str(imported), as_json)


@annotate.command(
    epilog=examples("local-bench annotate ranking runs/studio", "local-bench annotate ranking runs/a runs/b --json")
)
@RUNS
@JSON
def ranking(run_dirs: tuple[Path, ...], as_json: bool) -> int:
    """Rank the models of RUN… by annotators' comparisons (protocol pairwise), stored in the first one."""
    from local_bench.annotation.exchange import preferences
    from local_bench.settle.pairwise import notes

    with opened(run_dirs) as runs:
        ranked = preferences(*runs)
    said = notes(ranked)
    columns = (
        *(Column("model", "model"), Column("wins", "won"), Column("ties", "tied"), Column("losses", "lost")),
        *(Column("win_rate", "win rate", ".3f"), *interval("", ".2f"), Column("strength", "Bradley-Terry", "+z.2f")),
    )
    rows = {"models": [asdict(preference) for preference in ranked], "notes": said}
    return show_result(rows, printed(columns, ranked, said), as_json)


@annotate.command(epilog=examples("local-bench annotate link runs/studio r01 --base http://10.0.0.5:8000"))
@RUN
@click.argument("name")
@click.option("--base", metavar="URL", help="The server's address [default: that of the server that ran last].")
@JSON
def link(run_dir: Path, name: str, base: str | None, as_json: bool) -> int:
    """Make a new personal link for the annotator NAME; the earlier one becomes invalid."""
    from local_bench.annotation.database import SERVED_BASE
    from local_bench.annotation.serve import origin_of
    from local_bench.core.errors import UserError

    with _database(run_dir) as database:
        _known(database, name)
        if not (base := base or database.meta(SERVED_BASE)):
            raise UserError(f"no server has run for {run_dir}: give its address with --base")
        url = f"{origin_of(base)}/a/{database.new_token(name)}"
    return show_result({"name": name, "link": url}, url, as_json)


@annotate.command(epilog=examples("local-bench annotate forget runs/studio r01 --yes"))
@RUN
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@JSON
def forget(run_dir: Path, name: str, yes: bool, as_json: bool) -> int:
    """Remove the annotator NAME and all their answers from RUN. This cannot be undone."""
    from local_bench.annotation.serve import lock_annotations

    with lock_annotations(run_dir), _database(run_dir) as database:
        _known(database, name)
        if not yes:
            click.confirm(f"Remove {name} and all their answers from {run_dir}?", abort=True, err=True)
        n = database.forget(name)
    return show_result({"name": name, "n_answers": n}, f"removed {name} and {count(n, 'answers')}", as_json)


def _database(run_dir: Path) -> "AnnotationDatabase":
    from local_bench.annotation.database import FILE, AnnotationDatabase

    return AnnotationDatabase(run_dir / FILE)


def _known(database: "AnnotationDatabase", name: str) -> None:
    from local_bench.core.errors import UserError, hint

    names = [annotator.name for annotator in database.annotators()]
    if name not in names:
        raise UserError(f"{database.path} has no annotator {name!r}: {hint(name, names, 'it has ' + ', '.join(names))}")
