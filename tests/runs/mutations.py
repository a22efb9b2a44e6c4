"""Single changes of a finished run with judged images, and what `verify` must say about each."""

import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from PIL import Image, PngImagePlugin

from local_bench.core.errors import LocalBenchError
from local_bench.runs.rundir import RunDir
from local_bench.runs.verify import Finding, verify

Mutation = Callable[[Path], None]


def _sql(statement: str) -> Mutation:
    def apply(run: Path) -> None:
        db = sqlite3.connect(run / "ledger.sqlite")
        db.execute("PRAGMA ignore_check_constraints = ON")
        changed = db.execute(statement).rowcount
        db.commit()
        db.close()
        assert changed > 0, f"{statement} changes nothing"

    return apply


def _images(run: Path, folder: str = "images") -> list[Path]:
    return sorted((run / folder).rglob("*.png"))


def _flip_a_pixel(run: Path, folder: str = "images") -> None:
    path = _images(run, folder)[0]
    image = Image.open(path).convert("RGB")
    r, g, b = image.getpixel((3, 5))
    image.putpixel((3, 5), (r ^ 1, g, b))
    image.save(path)


def _swap_two_images(run: Path) -> None:
    first, second = _images(run)[:2]
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def _add_a_comment(run: Path) -> None:
    path = _images(run)[0]
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "hello")
    Image.open(path).save(path, pnginfo=text)


def _replace(name: str, old: str, new: str) -> Mutation:
    def apply(run: Path) -> None:
        path = run / name
        text = path.read_text()
        changed = re.sub(old, new, text, count=1)
        assert changed != text, f"{old} is not in {name}"
        path.write_text(changed)

    return apply


def _truncate_the_ledger(run: Path) -> None:
    path = run / "ledger.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _first(table: str, change: str = "", where: str = "TRUE", key: str = "rowid") -> Mutation:
    """Change the first row of a table, or delete it; `decisions` may have no row ids."""
    does = f"UPDATE {table} SET {change}" if change else f"DELETE FROM {table}"
    return _sql(f"{does} WHERE {key} = (SELECT min({key}) FROM {table} WHERE {where})")


def _decision(change: str = "", where: str = "TRUE") -> Mutation:
    return _first("decisions", change, where, "work_id")


def _score(kind: str, change: str = "") -> Mutation:
    """The same of the first score of a kind that has a value."""
    first = f"SELECT work_id, name FROM scores WHERE kind = '{kind}' AND value IS NOT NULL ORDER BY work_id, name"
    does = f"UPDATE scores SET {change}" if change else "DELETE FROM scores"
    return _sql(f"{does} WHERE (work_id, name) = ({first} LIMIT 1)")


def _edit(change: Callable[[bytes], bytes]) -> Mutation:
    def apply(run: Path) -> None:
        path = _images(run)[0]
        path.write_bytes(change(path.read_bytes()))

    return apply


_DONE = "SELECT {} FROM candidates WHERE state = 'done' ORDER BY work_id {} LIMIT 1"
_ANOTHER_IMAGE = f"""UPDATE candidates SET pixels_sha256 = ({_DONE.format("pixels_sha256", "DESC")})
                     WHERE work_id = ({_DONE.format("work_id", "")})"""
_ANOTHER_IDENTITY = """UPDATE candidates SET identity = '0' || substr(identity, 2)
                       WHERE identity IS NOT NULL AND identity NOT LIKE '0%'"""
MUTATIONS: dict[str, tuple[Mutation, str]] = {
    # files
    "flip a pixel": (_flip_a_pixel, r"images/.*altered"),
    "swap two images": (_swap_two_images, r"images/.*altered"),
    "remove an image": (lambda run: _images(run)[0].unlink(), r"images/.*missing"),
    "empty an image": (_edit(lambda data: b""), r"images/.*damaged"),
    "cut an image": (_edit(lambda data: data[:-20]), r"images/"),
    "flip a byte of an image": (_edit(lambda data: data[:99] + bytes([data[99] ^ 64]) + data[100:]), r"images/"),
    "append to an image": (_edit(lambda data: data + b"x"), r"images/.*data after its end"),
    "add a comment to an image": (_add_a_comment, r"images/.*chunk 'tEXt'"),
    "add an image": (
        lambda run: shutil.copy(_images(run)[0], run / "images/extra.png"),
        r"images/extra.png.*not an image of this run",
    ),
    "flip a pixel of an input": (lambda run: _flip_a_pixel(run, "inputs"), r"inputs/.*(altered|not an image)"),
    "edit run.yaml": (_replace("run.yaml", r"veq: 3.0", "veq: 3.5"), r"run.yaml|decision"),
    "edit a comment of run.yaml": (lambda run: (run / "run.yaml").open("a").write("# x\n"), r"run.yaml"),
    "edit provenance": (_replace("provenance.json", r'"python": "3', '"python": "4'), r"provenance.json"),
    "edit a digest in provenance": (
        _replace("provenance.json", r'"weights_sha256": "(.)', '"weights_sha256": "x'),
        r"provenance.json",
    ),
    "remove provenance": (lambda run: (run / "provenance.json").unlink(), r"provenance.json"),
    "truncate the ledger": (_truncate_the_ledger, r"ledger.sqlite"),
    # tasks
    "change a price": (_first("tasks", "price_micro_usd = price_micro_usd + 1"), r"task .*price"),
    "change a category": (_first("tasks", "category = category || 's'"), r"task .*category"),
    "change a brief": (_first("tasks", """content = replace(content, '"brief":"', '"brief":"x')"""), r"task "),
    "remove a task": (_first("tasks"), r"task"),
    # candidates
    "change a prompt": (_first("candidates", "prompt = prompt || '.'"), r"image .*prompt"),
    "change a seed": (_first("candidates", "seed = seed + 1"), r"image .*seed"),
    "change the work": (
        _first("candidates", """work = replace(work, '"attempt":1', '"attempt":2')"""),
        r"image .*work_id",
    ),
    "change a batch size": (_first("candidates", "batch_size = batch_size + 1", "state = 'done'"), r"image .*identity"),
    "change an identity": (_sql(_ANOTHER_IDENTITY), r"image .*identity"),
    "change a model": (_first("candidates", "model = 'other'"), r"image .*model"),
    "give an image another candidate": (_sql(_ANOTHER_IMAGE), r"images/|verdict|candidates"),
    "remove a candidate": (_first("candidates"), r"candidates|ledger|image"),
    # verdicts
    "change a verdict": (
        _first("verdicts", "answer = replace(answer, ':1', ':0')", "answer LIKE '%:1%' AND rubric = 'brf'"),
        r"(brf|verdicts|score)",
    ),
    "change an answer to none that is allowed": (
        _first("verdicts", """answer = '{"met": 7}'"""),
        r"verdict .*not allow",
    ),
    "change a question id": (_first("verdicts", "question_id = 'x' || question_id"), r"verdict .*question id"),
    "change a rubric": (_first("verdicts", "rubric = 'none'"), r"verdict none/.*the suite does not have"),
    "change a rubric digest": (_first("verdicts", "rubric_sha256 = 'x'"), r"verdict .*version of its rubric"),
    "change a raw answer": (_first("verdicts", "raw = raw || ' '"), r"verdicts of task"),
    "move a verdict to another point": (_first("verdicts", "point = 99", "rubric = 'brf'"), r"verdict brf/99"),
    "remove a verdict": (_first("verdicts"), r"verdicts|score"),
    # scores and decisions
    "change a score": (_score("judge", "value = value + 0.25"), r"does not follow from the verdicts"),
    "change a metric score": (_score("metric", "value = value * 1.001"), r"scores of task"),
    "rename a metric": (_score("metric", "name = 'better'"), r"better"),
    "remove a score": (_score("judge"), r"is missing"),
    "change a decision": (_decision("accepted = 1 - accepted", "accepted IS NOT NULL"), r"decision"),
    "change a decision's price": (_decision("price_micro_usd = 0"), r"decision"),
    "remove a decision": (_decision(), r"decision"),
    "remove all decisions": (_sql("DELETE FROM decisions"), r"decisions"),
    # time and meta
    "change a meter row": (_first("meter", "t1_ns = t1_ns + 1"), r"session .*(gaps|sum)"),
    "change a phase": (_first("meter", "phase = 'idle'"), r"meter"),
    "remove a meter row": (_first("meter"), r"session"),
    "change the energy": (_sql("UPDATE meter SET energy_mj = coalesce(energy_mj, 0) + 1"), r"meter"),
    "change the held time": (_sql("UPDATE sessions SET held_ns = held_ns / 2"), r"session .*held time"),
    "change the device": (_sql("UPDATE sessions SET device = 'NVIDIA H100'"), r"session"),
    "change the numerics": (
        _sql("UPDATE meta SET value = replace(value, 'float32', 'float16') WHERE key LIKE 'numerics:%'"),
        r"identity",
    ),
    "rename a judge": (
        _sql("UPDATE meta SET value = replace(value, 'mini-judge', 'gpt-judge') WHERE key = 'judges'"),
        r"meta judges",
    ),
    "clear the record": (_sql("UPDATE meta SET value = '0' WHERE key = 'recorded'"), r"no record"),
    "remove the record": (_sql("DELETE FROM contents"), r"was added"),
}  # fmt: skip
"""What is changed -> (how, a pattern that a finding must match)."""


def findings_of(run: Path) -> list[Finding]:
    """The findings of `verify`; a run that cannot be opened is one finding."""
    try:
        with RunDir.open(run) as opened:
            return verify(opened)
    except LocalBenchError as e:
        return [Finding("database", "ledger.sqlite", str(e))]


def reported(name: str, run: Path, scratch: Path) -> tuple[bool, list[Finding]]:
    """Whether the mutation `name` of a copy of `run` is found and named, and all findings."""
    mutate, pattern = MUTATIONS[name]
    copy = scratch / re.sub(r"\W+", "-", name)
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report", "exports", "logs", "*.backup*"))
    mutate(copy)
    findings = findings_of(copy)
    shutil.rmtree(copy)
    return any(re.search(pattern, f"{f.subject} {f.fault}") for f in findings), findings
