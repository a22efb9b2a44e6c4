"""`local-bench predictor`: train predictors of payment on annotated runs, evaluate and apply them; and their output."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import (
    ALLOW_REMOTE,
    JSON,
    PATH,
    RUN,
    RUNS,
    SETTING,
    Commands,
    cards_completed,
    examples,
    opened,
)
from local_bench.cli.output import progress, quoted, say, say_notes, show_result
from local_bench.core.errors import count
from local_bench.core.money import usd
from local_bench.core.table import Column
from local_bench.report.render import interval, printed
from local_bench.report.text import interval as between
from local_bench.report.text import percent

if TYPE_CHECKING:
    from local_bench.analysis.people_settlement import PredictedSettlement
    from local_bench.analysis.predictors.card import Card
    from local_bench.analysis.predictors.evaluation import Report
    from local_bench.analysis.predictors.images import Statistics
    from local_bench.runs.payment import PredictionLine
    from local_bench.settle.predictors.evaluation import Measured
    from local_bench.settle.predictors.models import ExpectedRevenue

ANNOTATIONS = click.option(
    "--annotations",
    multiple=True,
    metavar="FILE|RUN",
    type=PATH,
    help="Human annotations, once for each RUN in their order [default: those made in the RUNs with `annotate`].",
)
OTHER_JUDGE = click.option(
    "--other-judge", is_flag=True, help="Accept runs with other judges or rubrics than those of the training runs."
)

_SCORE_KINDS = ["rule", "logistic"]
SEED = click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Selects the splits.")


@click.group(cls=Commands)
def predictor() -> None:
    """Train predictors of payment on annotated runs, evaluate them, and apply them to other runs."""


@predictor.command(
    epilog=examples(
        "local-bench predictor train runs/a runs/b --annotations a.jsonl --annotations b.jsonl --out payers/logistic",
        "local-bench predictor train runs/a --out payers/logistic --kind logistic   # annotated with `annotate`",
        "local-bench predictor train runs/a --out payers/servimage --kind servimage --model qwen3-vl-4b-1gpu",
    )
)
@RUNS
@ANNOTATIONS
@click.option("--out", required=True, metavar="DIR", type=PATH, help="A new folder for the predictor.")
@click.option(
    "--kind",
    type=click.Choice([*_SCORE_KINDS, "servimage"]),
    default="logistic",
    show_default=True,
    help="A tuned threshold rule, or logistic regression on the deciding scores; servimage: the two-stage model of the "
    "images.",
)
@click.option(
    "--model",
    metavar="NAME|FILE",
    default="qwen3-vl-4b-1gpu",
    show_default=True,
    help="With --kind servimage: the training's settings, of configs/payment or a YAML file.",
)
@click.option(
    "--row",
    type=click.Choice(["frozen", "concepts", "vision", "full"]),
    help="With --kind servimage: a row of ServImage's table 4 [default: as in --model].",
)
@SEED
@JSON
def train(
    run_dirs: tuple[Path, ...],
    annotations: tuple[Path, ...],
    out: Path,
    kind: str,
    model: str,
    row: str | None,
    seed: int,
    as_json: bool,
) -> int:
    """Train a predictor of payment on annotated RUNs.

    Tasks are split by a hash of their content: 70 % train, 15 % calibrate, and 15 % are left for `evaluate`. The RUNs
    must have the same judges, rubrics and deciding scores. An interrupted training of kind servimage continues with the
    same command; `accelerate launch` runs it on several GPUs."""
    from local_bench.analysis.predictors.card import check_folder, save
    from local_bench.analysis.predictors.predictions import train as train_predictor

    check_folder(out)
    with opened(run_dirs) as runs:
        if kind == "servimage":
            from local_bench.analysis.predictors.images import annotations_of
            from local_bench.judges.payment.data import load_payment_config
            from local_bench.runs.payment import MODEL, model_log_odds, train_payment_model

            config = load_payment_config(model).model_copy(update={"seed": seed})
            config = config if row is None else config.row(row)
            decided = [of_run.decisions() for of_run in annotations_of(runs, annotations)]
            # unsuitable annotations are refused here, before hours of training
            untrained = {row.work_id: 0.0 for run in runs for row in run.store.candidates()}
            train_predictor(runs, annotations, "servimage", seed, untrained, say_notes)
            train_payment_model(runs, decided, config, out / MODEL, say)
            # `accelerate launch` runs the training in several processes, of which the first writes the predictor
            if os.environ.get("RANK", "0") != "0":
                return 0
            card = train_predictor(runs, annotations, "servimage", seed, model_log_odds("servimage", runs, out))
        else:
            card = train_predictor(runs, annotations, kind, seed, report=say_notes)  # type: ignore[arg-type]  # click's choices
    save(card, out)
    use = f"evaluate it with `local-bench predictor evaluate {quoted(out)} RUN…`"
    text = f"{card_text(card)}\nwritten to {out}: {use}"
    return show_result({"written": str(out)} | card_json(card), text, as_json)


@predictor.command(
    epilog=examples(
        "local-bench predictor evaluate payers/logistic runs/a runs/b --annotations a.jsonl --annotations b.jsonl",
        "local-bench predictor evaluate payers/logistic runs/a --predictions zero-shot.jsonl --json",
    )
)
@click.argument("folder", metavar="DIR", type=PATH)
@RUNS
@ANNOTATIONS
@click.option(
    "--predictions",
    multiple=True,
    metavar="FILE",
    type=PATH,
    help="Also evaluate these predictions, of `predictor zero-shot` or `predictor apply --out`; repeatable.",
)
@OTHER_JUDGE
@JSON
def evaluate(
    folder: Path,
    run_dirs: tuple[Path, ...],
    annotations: tuple[Path, ...],
    predictions: tuple[Path, ...],
    other_judge: bool,
    as_json: bool,
) -> int:
    """Evaluate the predictor in DIR on annotated RUNs.

    Only tasks that did not train or calibrate it count: the test tasks of its own runs, and all tasks new to it. The
    majority and the tuned threshold rule are always evaluated on the same images."""
    from local_bench.analysis.predictors.card import load
    from local_bench.analysis.predictors.evaluation import report
    from local_bench.runs.payment import model_log_odds, read_predictions

    card = load(folder)
    others = [read_predictions(file) for file in predictions]
    with opened(run_dirs) as runs:
        evaluated = report(card, runs, annotations, others, other_judge, model_log_odds(card.kind, runs, folder))
    say_notes(*evaluated.notes)
    return show_result(report_json(evaluated), report_text(evaluated), as_json)


@predictor.command(
    epilog=examples(
        "local-bench predictor apply runs/new --predictor payers/logistic",
        "local-bench predictor apply runs/new --predictor payers/logistic --out predictions.jsonl",
    )
)
@RUN
@click.option(
    "--predictor", "folder", metavar="DIR", type=PATH, required=True, help="A folder written by `predictor train`."
)
@click.option("--out", metavar="FILE", type=PATH, help="Write one JSON line per image to this new file.")
@OTHER_JUDGE
@JSON
def apply(run_dir: Path, folder: Path, out: Path | None, other_judge: bool, as_json: bool) -> int:
    """Predict payment for every image of RUN.

    `settle RUN --predictor DIR` turns the predictions into revenue."""
    from local_bench.analysis.predictors.predictions import n_used_tasks, predicted_by, used_tasks_note
    from local_bench.core.files import refuse_existing
    from local_bench.runs.payment import write_predictions
    from local_bench.runs.rundir import RunDir

    if out is not None:
        refuse_existing(out, ": give the name of a new file for the predictions")
    with RunDir.open(run_dir) as run:
        _, lines = predicted_by(folder, run, other_judge)
    n_used, n_tasks = n_used_tasks(lines)
    if out is not None:
        write_predictions(lines, out)
    say_notes(*used_tasks_note(n_used, n_tasks))
    rows = [line.model_dump(mode="json", exclude={"question_id"}) for line in lines]
    values = {"n_tasks": n_tasks, "n_tasks_used_in_training": n_used, "predictions": rows}
    return show_result(values, predictions_text(lines), as_json)


@predictor.command(
    "zero-shot",
    epilog=examples(
        "local-bench predictor zero-shot runs/new --judge qwen3-vl-8b --protocol logit --out zero-shot.jsonl",
        "local-bench predictor zero-shot runs/new --with-scores --out with-scores.jsonl",
        "local-bench predictor zero-shot runs/new --set judge.base_url=http://host:8000/v1 --out served.jsonl",
    ),
)
@RUN
@click.option("--judge", "card", metavar="CARD", shell_complete=cards_completed, help="[default: the run's judge]")
@click.option(
    "--protocol",
    type=click.Choice(["json", "logit"]),
    help="json: 0 or 1. logit: the probability of 1. [default: the run's protocol]",
)
@click.option("--with-scores", is_flag=True, help="Put the run's deciding scores of the image into the question.")
@click.option("--out", required=True, metavar="FILE", type=PATH, help="The file to write; continued if it exists.")
@SETTING
@ALLOW_REMOTE
@JSON
def zero_shot(
    run_dir: Path,
    card: str | None,
    protocol: str | None,
    with_scores: bool,
    out: Path,
    settings: tuple[str, ...],
    allow_remote: bool,
    as_json: bool,
) -> int:
    """Let a judge predict payment for every image of RUN, without training.

    The question is whether the client would accept and pay for the image. `predictor evaluate --predictions FILE`
    compares the answers with trained predictors; RUN is not changed."""
    from local_bench.runs.config import load_config_to_judge
    from local_bench.runs.payment import judge_payment
    from local_bench.runs.rundir import RunDir, read_run_config

    own = read_run_config(run_dir).judge
    chosen = ["panel=[]"]  # which has no part in it, and may have the same card
    chosen += [] if card is None else [f"judge={{card: {card}, protocol: {own.protocol if own else 'json'}}}"]
    chosen += [] if protocol is None else [f"judge.protocol={protocol}"]
    config = load_config_to_judge(run_dir / "run.yaml", (*chosen, *settings), allow_remote=allow_remote)
    with RunDir.open(run_dir) as run, progress() as bars:
        lines, n_existing = judge_payment(run, config.required_judge, with_scores, out, bars)
    rows = [line.model_dump(mode="json") for line in lines]
    values = {"written": str(out), "n_there": n_existing, "predictions": rows}
    return show_result(values, predictions_text(lines), as_json)


@predictor.command(
    epilog=examples(
        "local-bench predictor dataset train.jsonl val.jsonl",
        "local-bench predictor dataset train.jsonl --least-confidence 0.1 --kind logistic --out payers/published",
    )
)
@click.argument("files", metavar="FILE…", type=PATH, nargs=-1, required=True)
@click.option(
    "--least-confidence",
    metavar="P",
    type=click.FloatRange(0, 0.5),
    help="Leave out training samples whose decision has less than this probability by a model of other tasks.",
)
@click.option("--out", metavar="DIR", type=PATH, help="Also train a predictor and write it to this new folder.")
@click.option(
    "--kind",
    type=click.Choice(_SCORE_KINDS),
    default="logistic",
    show_default=True,
    help="A tuned threshold rule, or logistic regression on the deciding scores.",
)
@SEED
@JSON
def dataset(
    files: tuple[Path, ...], least_confidence: float | None, out: Path | None, kind: str, seed: int, as_json: bool
) -> int:
    """Report statistics of ServImage_Dataset, and train a predictor on it.

    A line of FILE has model, task_id, category, subtask_idx, label (0 or 1) and seven scores, as the authors' reader
    expects them. Deliverables with both labels are always left out. Such a predictor is used with --other-judge."""
    from local_bench.analysis.predictors import images as datasets
    from local_bench.analysis.predictors.card import check_folder, save
    from local_bench.analysis.predictors.predictions import train_on
    from local_bench.suites.servimage.results import read_dataset

    if out is not None:
        check_folder(out)
    lines = read_dataset(files)
    images, n_doubtful = datasets.labelled_dataset(lines, seed), None
    if least_confidence is not None:
        left_out = datasets.doubtful(images, least_confidence, seed)
        images, n_doubtful = datasets.without(images, left_out), int(left_out.sum())
    statistics = datasets.statistics(lines, images, n_doubtful)
    text, values = statistics_text(statistics), asdict(statistics)
    if out is not None:
        names = [file.name for file in files]
        card = train_on(images, datasets.INPUTS, names, None, kind, seed)  # type: ignore[arg-type]  # as `train`
        save(card, out)
        text += f"\n\n{card_text(card)}\nwritten to {out}"
        values |= {"written": str(out), "predictor": card_json(card)}
    return show_result(values, text, as_json)


CALIBRATED_NOTE = "the ECE of these images that exact probabilities would have on average"
EXPECTED_NOTE = (
    "expected revenue: probability times price; its interval is of the choice of tasks and not of the predictor's fit"
)


def card_json(card: "Card") -> dict[str, Any]:
    """What was trained on what, without the fitted numbers; tasks are counted."""
    data = card.model_dump(mode="json", exclude={"predictor", "tuned_rule", "rule"})
    data["trained_on"]["n_tasks"] = {split: len(tasks) for split, tasks in data["trained_on"].pop("tasks").items()}
    return data | {"tuned_rule": tuned_thresholds(card)}


def tuned_thresholds(card: "Card") -> dict[str, float]:
    """The thresholds of the tuned rule."""
    from local_bench.settle.predictors.models import Rule, loads

    rule = loads(card.tuned_rule)
    assert isinstance(rule, Rule)
    return rule.thresholds


def card_text(card: "Card") -> str:
    """One paragraph."""
    on = card.trained_on
    counts = ", ".join(f"{on.n_images[split]} {split}" for split in on.n_images)
    thresholds = ", ".join(f"{name} >= {value:.3g}" for name, value in tuned_thresholds(card).items())
    return (
        f"{card.kind} on {', '.join(card.inputs.scores)}; annotated images: {counts}; calibrated on: "
        f"{on.calibrated_on}; {percent(card.majority)} of the training images are accepted; tuned rule: {thresholds}"
    )


_REPORT = (
    *(Column("name", "predictor"), Column("evaluation.n", "images")),
    *(Column("evaluation.accuracy.value", "accuracy", percent), *interval("evaluation.accuracy", percent)),
    *(Column("over_tuned_rule.value", "over tuned rule", "+.1%"), *interval("over_tuned_rule", "+.1%")),
    Column("evaluation.balanced_accuracy.value", "balanced", percent),
    *(Column("evaluation.auc.value", "AUC", ".3f"), *interval("evaluation.auc", ".3f")),
    *(Column("evaluation.pr_auc.value", "PR-AUC", ".3f"), Column("evaluation.brier.value", "Brier", ".3f")),
    *(Column("evaluation.ece.value", "ECE", ".3f"), Column("evaluation.ece_if_calibrated", "if calibrated", ".3f")),
    Column("evaluation.n_unpredicted", "no prediction"),
)


def report_text(result: "Report") -> str:
    """Table 4 with further measures, then figure 4 (c): accuracy by category."""
    from local_bench.settle.explain import LEAST_TASKS

    categories = sorted({c for row in result.rows if row.evaluation for c in row.evaluation.by_category})
    of_category = [
        {"name": row.name, **{c: _with_interval(m) for c, m in row.evaluation.by_category.items()}}
        for row in result.rows
        if row.evaluation
    ]
    images = count(result.n, "images")
    notes = [f"{row.name}: no prediction for any of {images}" for row in result.rows if not row.evaluation]
    notes.append(
        f"{count(result.n, 'annotated images')} of tasks that did not train or calibrate the predictor; "
        f"{result.n_left_out} others are left out; accuracy at a probability of one half; intervals: 95 %, bootstrap "
        f"over tasks, from {LEAST_TASKS} tasks on; if calibrated: {CALIBRATED_NOTE}"
    )
    accuracy = (Column("name", "accuracy"), *(Column(category, category) for category in categories))
    return "\n\n".join([printed(_REPORT, result.rows), printed(accuracy, of_category), *notes])


def _with_interval(measured: "Measured") -> str | None:
    if measured.value is None or measured.low is None or measured.high is None:
        return None if measured.value is None else percent(measured.value)
    return f"{percent(measured.value)} ({between(measured.low, measured.high)})"


def report_json(result: "Report") -> dict[str, Any]:
    """Rates as fractions; a measure is `{value, low, high}`."""
    return {
        "n": result.n,
        "n_left_out": result.n_left_out,
        "rows": [
            {
                "name": row.name,
                **({} if row.evaluation is None else asdict(row.evaluation)),
                "accuracy_over_tuned_rule": row.over_tuned_rule and asdict(row.over_tuned_rule),
            }
            for row in result.rows
        ],
    }


def predictions_text(lines: Sequence["PredictionLine"]) -> str:
    """Counts by model."""
    rows = []
    for model in dict.fromkeys(line.model for line in lines):
        of_model = [line for line in lines if line.model == model]
        values = [line.probability for line in of_model if line.probability is not None]
        row = {"model": model, "n": len(of_model), "accepted": sum(line.accepted is True for line in of_model)}
        mean = sum(values) / len(values) if values else None
        rows.append(row | {"mean": mean, "none": len(of_model) - len(values)})
    columns = (
        *(Column("model", "model"), Column("n", "images"), Column("accepted", "predicted accepted")),
        *(Column("mean", "mean probability", ".3f"), Column("none", "no prediction")),
    )
    return printed(columns, rows)


_SETTLED = (
    *(Column("predicted.model", "model"), Column("predicted.total.revenue_micro_usd", "revenue, predicted", usd)),
    *interval("predicted.total.revenue_interval_micro_usd", usd, "0", "1"),
    Column("expected.expected_micro_usd", "expected revenue", usd),
    *interval("expected.interval_micro_usd", usd, "0", "1"),
    Column("run.total.revenue_micro_usd", "revenue, by the run", usd),
    *(Column("predicted.total.n_accepted", "accepted, predicted"), Column("predicted.total.n", "of")),
    *(Column("run.total.n_accepted", "by the run"), Column("run.total.n", "of")),
    Column("expected.n_unscored", "no prediction"),
)


def settled_text(settled: Sequence["PredictedSettlement"]) -> str:
    """Revenue by predicted decisions and expected revenue, apart, with the run's own."""
    bounds = [Column(f"predicted.total.bounds_micro_usd.{end}", end, usd, "bounds", below=True) for end in "01"]
    is_open = any(of_model.predicted.total.open_micro_usd for of_model in settled)
    return printed((*_SETTLED[:4], *(bounds if is_open else ()), *_SETTLED[4:]), settled, [EXPECTED_NOTE])


def expected_json(expected: "ExpectedRevenue") -> dict[str, Any]:
    """Expected revenue, in US dollars."""
    from local_bench.analysis.loading import in_usd

    low, high = expected.interval_micro_usd or (None, None)
    row = vars(expected) | {"ci95_low_micro_usd": low, "ci95_high_micro_usd": high}
    return in_usd(row, ("expected_usd", "at_most_expected_usd", "ci95_low_usd", "ci95_high_usd", "n", "n_unscored"))


def statistics_text(stats: "Statistics") -> str:
    """Counts, then one row per category and per concept."""
    counts = (
        f"{count(stats.n_samples, 'samples')} of {count(stats.n_tasks, 'tasks')} by {count(stats.n_models, 'models')}, "
        f"{percent(stats.accepted)} accepted; of {stats.n_lines} lines {stats.n_unlabelled} have no label, "
        f"{stats.n_duplicates} are repeated, and {stats.n_contradictory} deliverables have both labels and are left out"
    )
    if stats.n_doubtful is not None:
        counts += f"; {stats.n_doubtful} doubtful training samples are left out"
    counts += "; by split: " + ", ".join(f"{n} {split}" for split, n in stats.samples_by_split.items())
    categories = [
        {"category": c, "n": n, "accepted": stats.accepted_by_category[c]} for c, n in stats.samples_by_category.items()
    ]
    by_category = (Column("category", "category"), Column("n", "samples"), Column("accepted", "accepted", percent))
    concepts = (
        *(Column("name", "concept"), Column("n", "samples"), Column("auc", "AUC", ".3f")),
        *(Column("n_unscored", "missing"), Column("n_not_applicable", "not applicable")),
    )
    return "\n\n".join([counts, printed(by_category, categories), printed(concepts, stats.explained)])
