"""What is said of a run in sentences: what to read with care, and what its time cost; and the order of its models."""

from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.money import usd_exact, usd_fine
from local_bench.models.cards import cards
from local_bench.report.judging import judge_warnings
from local_bench.report.text import count, percent
from local_bench.runs.image_store import faults_sentence
from local_bench.runs.prices import Price
from local_bench.runs.roofline import impossible_timings
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.settle.settlement import Settlement


def model_order(run: RunDir) -> list[str]:
    """Return the models in config order, then any other models in the ledger by name."""
    labels = [m.label for m in run.config.models]
    return labels + [model for model in run.store.models() if model not in labels]


def thresholds(run: RunDir) -> dict[str, float]:
    """The acceptance rule's thresholds by score name."""
    return dict(thresholds_of(run.config))


def warnings(run: RunDir, settlements: list[Settlement]) -> list[str]:
    """Return one warning per problem: small models, judges, impossible times, low coverage, unfinished work."""
    by_name = cards()
    small = [
        by_name[name]
        for name in dict.fromkeys([*(m.card for m in run.config.models), *(j.card for j in run.config.judges)])
        if name in by_name and by_name[name].source.build
    ]
    sentences = [
        f"{card.name} is a small model with random weights for testing: its outputs are meaningless."
        for card in small
        if card.source.random
    ]
    trained = [card.name for card in small if not card.source.random]
    if trained:
        sentences.append(
            f"{', '.join(trained)}: small models trained only on the synthetic printshop images. Their results "
            "are valid for these images only and do not apply to large models."
        )
    decided = run.config.judges or any(s.total.n for s in settlements)
    if not run.config.judges:
        sentences.append("The run has no judge" + ("." if decided else ": no image has a decision."))
    sentences += judge_warnings(run) + impossible_timings(run.store)
    unseen = unseen_inputs(run)
    requested = {s.model: s.total.n + s.total.n_unscored for s in settlements}
    blind = ", ".join(f"{model} {n:,} of {count(requested[model], 'image')}" for model, n in unseen.n_images.items())
    if blind:
        sentences.append(
            "Generated without all of their task's input images, which the model does not take (suite.unsupported): "
            f"{blind}. Judges and metrics compare them with the source all the same."
        )
    sentences += [
        f"{', '.join(models)} have the same pixels in {count(n, 'image')} of the same deliverables: if one was copied, "
        "it is judged and paid once per model."
        for models, n in run.store.shared_images().items()
    ]
    least = run.config.settlement.coverage_min
    required = max(percent(least), f"{100 * least:g} %", key=len)  # not rounded
    for s in settlements:
        if decided and s.total.coverage < least:
            what = "tasks' value could be settled" if s.total.value_micro_usd else "images could be decided"
            sentences.append(
                f"{s.model}: {percent(s.total.coverage)} of the {what}, less than the required {required} "
                "(settlement.coverage_min)."
            )
    progress = run.store.progress()
    for row in progress:
        if row.n_planned:
            left = f"{row.n_planned:,} of {count(row.n, 'image')} {'has' if row.n == 1 else 'have'}"
            sentences.append(f"{row.model}: {left} not been generated yet.")
        if row.n_undecided:
            verbs = "has no decision yet and counts" if row.n_first == 1 else "have no decision yet and count"
            sentences.append(
                f"{row.model}: {row.n_undecided:,} of {count(row.n_first, 'deliverable')} {verbs} as unscored."
            )
    planned = {row.model for row in progress}
    sentences += [f"{model}: no images are planned yet." for model in model_order(run) if model not in planned]
    if faults := run.image_store.all_faults:
        sentences.append(f"{faults_sentence(faults)}. Scores and decisions are of the images as they were generated.")
    return sentences


def cost_text(price: Price | None, micro: int | None) -> str:
    """A cost to the micro-dollar, or why there is none."""
    if price is None:
        return "no price"
    return "not metered" if micro is None else usd_fine(micro)


def price_sentence(price: Price | None) -> str:
    """The source of the price per hour, or a note that there is none."""
    if price is None:
        return (
            "The price table has no row for the device of this run, so what its time cost is not stated; "
            "settlement.usd_per_hour in the config sets a price."
        )
    hour = f"{usd_exact(price.micro_usd_per_hour)} for an hour of {price.gpu}"
    level = "the lab's own price" if price.level == "own" else f"the {price.level} price of the table"
    as_of = f", as of {price.date}" if price.date else ""
    return f"Time is priced at {hour} ({level}; source: {price.source}{as_of})."
