"""What `settle` says of people's labels: what they make of the judge's word, and whom to ask next."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_bench.cli.output import say
from local_bench.core.errors import UserError
from local_bench.core.money import usd, usd_number
from local_bench.core.tables import table

if TYPE_CHECKING:
    from local_bench.analysis.sampling import Labels, ModelLabels
    from local_bench.runs.rundir import RunDir
    from local_bench.settle.ppi import PpiEstimate


@dataclass(frozen=True)
class LabelsAsked:
    """What the command line asks about labels; nothing, where all are left out."""

    people: Path | None
    width: float | None
    questions: Path | None
    explain: bool = False

    def check(self) -> None:
        """UserError before any work is done."""
        from local_bench.analysis.sampling import refuse_existing

        if self.questions is not None:
            if self.width is None:
                raise UserError("--questions writes what --plan-labels plans: give it a width too")
            refuse_existing(self.questions)
        if self.explain and self.people is None:
            raise UserError("--explain looks at people's labels: give them with --people FILE")

    def answer(self, run: "RunDir") -> tuple[str, dict[str, Any]]:
        """The answer for people and for programs; sentences about it go to stderr."""
        from local_bench.analysis.sampling import labelling, write_questions

        if self.people is None and self.width is None:
            return "", {}
        found = labelling(run, self.width, self.people)
        for sentence in found.notes:
            say(f"local-bench: {sentence}")
        if self.questions is not None:
            write_questions(found, self.questions)
            say(f"local-bench: the images to be labelled are in {self.questions}: put true or false for each `overall`")
        text, values = labels_text(found), {"labels": {m.model: _model_json(m) for m in found.models}}
        if self.explain and self.people is not None:
            from local_bench.analysis.payment import payment
            from local_bench.cli.payment import payment_json, payment_text

            paid = payment(run, self.people)
            text, values = f"{text}\n\n{payment_text(paid)}", values | {"payment": payment_json(paid)}
        return f"\n\n{text}", values


def labels_text(found: "Labels") -> str:
    """What people would pay, by model, and what is to be asked."""
    parts = []
    estimated = [m for m in found.models if m.estimates is not None]
    if estimated:
        paid = any(m.value_micro_usd for m in estimated)
        header = ["model", "images", "labelled"]
        header += ["by the judge's decisions", "people would pay", "95 %"] if paid else ["accepted by the judge"]
        header += ["accepted by people", "95 %", "power", "no answer"]
        parts.append(table(header, [_estimate_row(m, paid) for m in estimated]))
    planned = [m for m in found.models if m.plan is not None]
    if planned:
        rows = [
            [m.model, str(len(m.work_ids)), str(m.plan.n_known), str(m.plan.n_labels), _percent(m.plan.width)]
            for m in planned
            if m.plan is not None
        ]
        parts.append(table(["model", "images", "labelled", "to be asked", "width to come"], rows))
    return "\n\n".join(parts) or "nobody has labelled an image of this run"


def _estimate_row(m: "ModelLabels", paid: bool) -> list[str]:
    """In money where the orders have prices, else in images alone."""
    assert m.estimates is not None
    revenue, images = m.estimates.revenue, m.estimates.images
    low, high = revenue.of_weight(revenue.low), revenue.of_weight(revenue.high)
    n = len(m.work_ids)
    money = [
        usd(m.decided_micro_usd),
        usd(round(revenue.estimate * revenue.weight)),
        "-" if low is None or high is None else f"{usd(round(low))} to {usd(round(high))}",
    ]
    return [
        *(m.model, str(n), str(revenue.n_labelled)),
        *(money if paid else [_percent(m.n_accepted / n) if n else "-"]),
        _percent(images.estimate),
        "-" if images.low is None or images.high is None else f"{_percent(images.low)} to {_percent(images.high)}",
        f"{revenue.power:.2f}",
        str(revenue.n_unanswered),
    ]


def _percent(part: float) -> str:
    return f"{part:.1%}"


def _model_json(m: "ModelLabels") -> dict[str, Any]:
    estimates, plan = m.estimates, m.plan
    return {
        "n_images": len(m.work_ids),
        "n_not_made": m.n_not_made,
        "value_usd": usd_number(m.value_micro_usd),
        "decided_usd": usd_number(m.decided_micro_usd),
        "n_accepted": m.n_accepted,
        "estimates": estimates
        and {
            "revenue_share": _powered_json(estimates.revenue),
            "deliverable_acceptance": _powered_json(estimates.images),
            "revenue_share_at_large": _powered_json(estimates.revenue_at_large),
            "deliverable_acceptance_at_large": _powered_json(estimates.images_at_large),
        },
        "plan": plan
        and {
            "n_labels": plan.n_labels,
            "n_known": plan.n_known,
            "width": plan.width,
            "ask": [
                {"task_id": m.keys[i][0], "deliverable": m.keys[i][1], "probability": float(plan.probabilities[i])}
                for i in map(int, plan.ask)
            ],
        },
    }


def _powered_json(p: "PpiEstimate") -> dict[str, Any]:
    return {
        "estimate": p.estimate,
        "low": p.low,
        "high": p.high,
        "undefined": p.undefined,
        "over": p.over,
        "power": p.power,
        "judge_alone": p.judge_alone,
        "at_least": p.at_least,
        "at_most": p.at_most,
        "n": p.n,
        "n_labelled": p.n_labelled,
        "n_unanswered": p.n_unanswered,
        "n_unpredicted": p.n_unpredicted,
    }
