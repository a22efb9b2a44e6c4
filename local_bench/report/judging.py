"""The judging section of the report: judges, repeatability, prompt-injection robustness, and inter-judge agreement."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field, ValidationError

from local_bench.analysis.agreement import Alpha, Pair, agreement, judge_labels, order_swaps
from local_bench.core.errors import LedgerError
from local_bench.models.cards import cards
from local_bench.report.text import NOT_APPLICABLE, count, interval, percent
from local_bench.runs.config import RunConfig
from local_bench.runs.repeatability import RepeatabilityRow, retest_rows
from local_bench.runs.rundir import RunDir
from local_bench.settle.agreement import Agreement
from local_bench.settle.intervals import wilson
from local_bench.suites.registry import suite

NOT_TRIED = "not tried"
NOT_NOTED = "not noted"
TOP_K = 3
_PROTOCOLS = {"json": "a JSON object", "logit": "the labels' probabilities"}


class Attacks(BaseModel):
    """Results of the prompt-injection test of one judge."""

    n: int = Field(ge=0)
    """Attacks with a usable answer both with and without the injected text."""
    n_unscored: int = Field(ge=0)
    fooled_by: list[str]

    @property
    def n_fooled(self) -> int:
        return len(self.fooled_by)


class Judge(BaseModel):
    """One judge of a run, as stored in the provenance."""

    name: str
    judge_id: str
    card: str
    protocol: str = NOT_NOTED
    transport: str = NOT_NOTED
    server: str = ""
    reproducible: bool | None = None
    """None if it was not tested."""
    note: str = "batch invariance was not checked"
    not_batch_invariant: str = ""
    """Why vLLM's batch-invariant mode is off; empty if it is on, or the judge does not have one."""
    attacks: Attacks | None = None
    """None if they were not tested."""

    @property
    def repeats(self) -> str:
        """Repeatability of the answers; `reproducible` only if it was tested."""
        return {None: NOT_TRIED, True: "reproducible", False: "not reproducible"}[self.reproducible]

    @property
    def fooled(self) -> str:
        """`2 of 16 prompt injections successful`."""
        if self.attacks is None:
            return "prompt injection not tested"
        return f"{self.attacks.n_fooled} of {count(self.attacks.n, 'prompt injection')} successful"


def judges(run: RunDir) -> list[Judge]:
    """Return the judges with verdicts in the ledger, in config order. LedgerError if their metadata is damaged."""
    noted = run.store.json_meta("provenance") or {}
    configs = {config.label: config for config in run.config.judges}
    try:
        every = [Judge.model_validate(entry) for entry in [noted.get("judge"), *noted.get("panel", [])] if entry]
        known = {judge.judge_id: judge for judge in every}
        return [
            known.get(judge_id)
            or Judge(name=label, judge_id=judge_id, card=configs[label].card if label in configs else NOT_NOTED)
            for judge_id, label in judge_labels(run).items()
        ]
    except (ValidationError, AttributeError, TypeError):
        raise LedgerError(
            f"the judge metadata in {run.store.path} cannot be read: run `local-bench judge {run.path}` again"
        ) from None


@dataclass(frozen=True)
class JudgeRow:
    """One judge. A cell with two strings is (value, text below it)."""

    name: str
    title: str
    card: str
    protocol: tuple[str, str]
    transport: tuple[str, str]
    repeats: tuple[str, str]
    fooled: tuple[str, str]
    """Successful attacks, and the 95 % interval of their share."""
    attacks: str
    """Names of the successful attacks."""
    unscored: str


@dataclass(frozen=True)
class AgreementRow:
    judges: tuple[str, str]
    images: str
    rate: tuple[str, str]
    kappa: str
    models: str
    rho: str
    top_k: str
    unscored: str


@dataclass(frozen=True)
class RepeatRow:
    """Repeatability for the group named by `what`."""

    what: tuple[str, ...]
    n: str
    same: tuple[str, str]
    difference: tuple[str, str]
    unscored: str


@dataclass(frozen=True)
class Judging:
    """Content of the judging section."""

    judges: list[JudgeRow]
    word: str | None
    """How the scores of several judges are combined; None for a single judge."""
    spread: str | None
    """Meaning of the value after ±; None if no score has one."""
    top_k: int
    agreement: dict[str, tuple[str, list[AgreementRow]]]
    """Dimension -> (alpha over all judges, one row per pair of judges); empty for one judge."""
    retests: dict[str, tuple[str, list[RepeatRow]]]
    """Judge -> (summary sentence, one row per criterion)."""
    order_swaps: list[RepeatRow]


def judging(run: RunDir) -> Judging:
    """Build the judging section. LedgerError if the stored judge metadata is damaged."""
    run_judges = judges(run)
    found: dict[str, tuple[str, list[AgreementRow]]] = {}
    if len(run_judges) > 1:
        found_agreement = agreement(run, top_k=TOP_K)
        alphas = {alpha.dimension: alpha for alpha in found_agreement.alphas}
        for pair in found_agreement.pairs:
            found.setdefault(pair.dimension, (_alpha(alphas.get(pair.dimension)), []))[1].append(_pair(pair))
    has_spread = run.store.has_spreads()
    return Judging(
        judges=[_row(judge) for judge in run_judges],
        word=_word(run.config) if len(run_judges) > 1 else None,
        spread=_spread(run.config, len(run_judges)) if has_spread else None,
        top_k=TOP_K,
        agreement=found,
        retests=_retests(retest_rows(run), [judge.name for judge in run_judges]),
        order_swaps=[
            RepeatRow(
                (swap.judge,), f"{swap.same.n:,}", _share(swap.same),
                (_signed(swap.mean_difference), _points(swap.interval)), f"{swap.same.n_unscored:,}",
            )
            for swap in order_swaps(run)
        ],
    )  # fmt: skip


def judge_warnings(run: RunDir) -> list[str]:
    """Return one warning per problem found with the judges."""
    found = []
    for judge in judges(run):
        if judge.attacks is not None and judge.attacks.n_fooled:
            found.append(f"Judge {judge.name}: {judge.fooled}; text in an image or a brief can raise its scores.")
        if judge.reproducible is False:
            found.append(f"Judge {judge.name} is not reproducible: {judge.note}.")
    return found


def _row(judge: Judge) -> JudgeRow:
    card, attacks = cards().get(judge.card), judge.attacks
    if attacks is None:
        fooled = NOT_TRIED, ""
    else:
        fooled = f"{attacks.n_fooled} of {attacks.n}", interval(*wilson(min(attacks.n_fooled, attacks.n), attacks.n))
    notes = (
        "" if judge.reproducible is None else judge.note,
        f"batch invariance is not guaranteed: {judge.not_batch_invariant}" if judge.not_batch_invariant else "",
    )
    return JudgeRow(
        name=judge.name,
        title=card.title if card else "",
        card=judge.card,
        protocol=(judge.protocol, _PROTOCOLS.get(judge.protocol.rpartition("-")[0], "")),
        transport=(judge.transport, "external server" if judge.server == "external" else ""),
        repeats=(judge.repeats, "; ".join(filter(None, notes))),
        fooled=fooled,
        attacks=", ".join(attacks.fooled_by) if attacks else "",
        unscored="" if attacks is None else f"{attacks.n_unscored:,}",
    )


def _word(config: RunConfig) -> str:
    n = len(config.judges)
    votes: Sequence[str] = suite(config.suite.name).pass_fail
    passes = "".join(f" The score {name} is 1 if more than half of the judges pass the image." for name in votes)
    if config.panel_word == "majority":
        word = f"Scores are the majority answer of {n} judges; a tie takes the lower label."
    else:
        word = f"Scores are the mean over {n} judges."
    return word + passes


def _spread(config: RunConfig, n: int) -> str:
    if n > 1:
        return "The value after ± is the standard deviation between the judges' scores of the image."
    return (
        "The value after ± is the score's standard deviation under the judge's label probabilities: its uncertainty, "
        "not its error."
    )


def _alpha(alpha: Alpha | None) -> str:
    if alpha is None or alpha.alpha.value is None:
        return f"Krippendorff's alpha {NOT_APPLICABLE}"
    among = f"{count(alpha.n_raters, 'judge')} and {count(alpha.alpha.n, 'image')}"
    return f"Krippendorff's alpha {alpha.alpha.value:.2f} over {among}"


def _pair(pair: Pair) -> AgreementRow:
    assert pair.rate is not None, pair  # without annotations, only acceptance decisions are compared
    return AgreementRow(
        judges=(pair.judge, pair.against),
        images=f"{pair.rate.n:,}",
        rate=_share(pair.rate),
        kappa=_figure(pair.kappa),
        models=f"{pair.rho.n:,}",
        rho=_figure(pair.rho),
        top_k=NOT_APPLICABLE if pair.top_k.value is None else percent(pair.top_k.value),
        unscored=f"{pair.rate.n_unscored:,}",
    )


def _retests(rows: list[RepeatabilityRow], names: list[str]) -> dict[str, tuple[str, list[RepeatRow]]]:
    found = {}
    for judge in names:
        mine = [row for row in rows if row.judge == judge]
        if not mine:
            continue
        same, n = same_answers(mine)
        summary = f"{same:,} of {count(n, 'answer')} the same every time" if n else "no comparable answers"
        table = [
            RepeatRow(
                (row.rubric, row.criterion, f"{row.rounds} times"), f"{row.retest.same.n:,}", _share(row.retest.same),
                (_plain(row.retest.mean_abs_difference), ""), f"{row.retest.same.n_unscored:,}",
            )
            for row in mine
        ]  # fmt: skip
        found[judge] = (summary, table)
    return found


def same_answers(rows: Iterable[RepeatabilityRow]) -> tuple[int, int]:
    """Numbers of answers that were the same every time, and of all that can be compared."""
    alike = [(row.retest.same.value or 0, row.retest.same.n) for row in rows]
    return round(sum(value * n for value, n in alike)), sum(n for _, n in alike)


def _share(a: Agreement) -> tuple[str, str]:
    return percent(a.value), "" if a.low is None or a.high is None else interval(a.low, a.high)


def _figure(a: Agreement | None) -> str:
    return NOT_APPLICABLE if a is None else _plain(a.value)


def _plain(value: float | None) -> str:
    return NOT_APPLICABLE if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return NOT_APPLICABLE if value is None else f"{value:+.2f}"


def _points(ends: tuple[float, float] | None) -> str:
    return f"{ends[0]:+.2f} to {ends[1]:+.2f}" if ends else ""
