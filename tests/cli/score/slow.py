"""An independent computation of the results of `score`: loops and fractions over plain dictionaries, none of our own
code."""

from fractions import Fraction as F
from itertools import groupby

import pytest


def assert_same(result, expected):
    """Every expected number is that of the result, also in what is nested."""
    for name, value in expected.items():
        if isinstance(value, dict):
            assert set(result[name]) >= set(value), name
            assert_same(result[name], value)
        else:
            assert result[name] == (None if value is None else pytest.approx(float(value), rel=1e-12, abs=1e-9)), name


def servimage(orders, decisions, scores=None, costs=None, require_success=False):
    """orders: id -> (category, price as text, q); decisions: (model, id, i) -> True, False, None;
    scores: (model, id, i) -> three texts or None; costs: model -> text."""
    models = list(dict.fromkeys(m for m, _, _ in decisions))
    price = {t: F(p) for t, (_, p, _) in orders.items()}
    size = {t: q for t, (_, _, q) in orders.items()}

    def accepted(model, task, optimistic=False):
        row = [decisions.get((model, task, i)) for i in range(1, size[task] + 1)]
        return sum(s is True or (optimistic and s is None) for s in row)

    def figures(model, tasks, optimistic=False):
        earned = [price[t] * accepted(model, t, optimistic) / size[t] for t in tasks]
        complete = [t for t in tasks if accepted(model, t, optimistic) == size[t]]
        images = sum(size[t] for t in tasks)
        return {
            "revenue_usd": sum(earned, F(0)),
            "share": sum(earned, F(0)) / sum(price[t] for t in tasks),
            "task_acceptance": F(len(complete), len(tasks)),
            "deliverable_acceptance": F(sum(accepted(model, t, optimistic) for t in tasks), images),
        }

    def done(model):
        return sum((price[t] for t in orders if accepted(model, t) == size[t]), F(0))

    budget = sum(price.values())
    result = {}
    for model in models:
        low, high = figures(model, orders), figures(model, orders, True)
        cost = None
        if costs and model in costs:
            cost = F(costs[model]) * sum(m == model for m, _, _ in decisions)
        result[model] = {
            **{name: low[name] for name in ("revenue_usd", "share", "task_acceptance", "deliverable_acceptance")},
            "revenue_high_usd": high["revenue_usd"],
            "share_high": high["share"],
            "task_acceptance_high": high["task_acceptance"],
            "deliverable_acceptance_high": high["deliverable_acceptance"],
            "cost_usd": cost,
            "model_contribution": done(model) / budget,
            "cost_savings": None if cost is None else 1 - cost / budget - (budget - done(model)) / budget,
            "contribution_ratio": None
            if cost is None or cost + budget == done(model)
            else done(model) / (cost + budget - done(model)),
            "by_category": {
                c: figures(model, [t for t in orders if orders[t][0] == c]) for c in {c for c, _, _ in orders.values()}
            },
        }
    return result, _competition(models, orders, decisions, scores, price, size, accepted, require_success)


def _competition(models, orders, decisions, scores, price, size, accepted, require_success):
    won = dict.fromkeys(models, F(0))
    for task in orders:
        present = [m for m in models if any((m, task, i) in decisions for i in range(1, size[task] + 1))]
        if not present:
            continue
        most = max(accepted(m, task) for m in present)
        leaders = [m for m in present if accepted(m, task) == most]
        if require_success and most < size[task]:
            continue
        if scores is not None:
            sums, unknown = {}, []
            for m in leaders:
                images = [i for i in range(1, size[task] + 1) if (m, task, i) in decisions]
                if any((m, task, i) not in scores for i in images):
                    unknown.append(m)
                else:
                    sums[m] = sum(F(s) for i in images for s in scores[m, task, i] if s is not None)
            leaders = unknown + [m for m in sums if sums[m] == max(sums.values())]
        for m in leaders:
            won[m] += price[task] / len(leaders)
    return {m: {"revenue_usd": won[m], "rank": 1 + sum(w > won[m] for w in won.values())} for m in models}


def hype_edit_1(verdicts, tasks, k, costs=None, cap=4, review=F(50 * 20, 3600)):
    """verdicts: (model, task, attempt) -> "PASS", "FAIL" or None."""
    result = {}
    for model in dict.fromkeys(m for m, _, _ in verdicts):
        passes = [[verdicts.get((model, t, a)) == "PASS" for a in range(1, k + 1)] for t in tasks]
        p = [F(sum(row), k) for row in passes]
        success = [1 - (1 - x) ** cap for x in p]
        tries = [sum((1 - x) ** a for a in range(cap)) for x in p]  # the geometric sum, without the division by p
        at_4 = sum(1 - (1 - x) ** 4 for x in p) / len(tasks)
        e, s = sum(tries) / len(tasks), sum(success) / len(tasks)
        first = F(sum(row[0] for row in passes), len(tasks))
        ever = F(sum(any(row) for row in passes), len(tasks))
        each = None if costs is None or model not in costs else F(costs[model]) + review
        result[model] = {
            "pass_rate": sum(p) / len(tasks),
            "pass_at_4": at_4,
            "pass_at_any": ever,
            "expected_attempts": e,
            "effective_cost_usd": None if each is None or s == 0 else e * each / s,
            "hype_gap": ever - first,
            "pass_at_4_unbiased": sum(_drawn(k, sum(row), 4) for row in passes) / len(tasks),
        }
    return result


def _drawn(n, c, k):
    """The chance that k draws without putting back hold one of c among n."""
    none = F(1)
    for i in range(k):
        none *= F(max(0, n - c - i), n - i)
    return 1 - none


def idea_bench(rows, category_of, names):
    """rows: (task, case, question) -> three of 0, 1, None."""
    tasks = {}
    for task, group in groupby(sorted(rows), key=lambda key: key[0]):
        cases = sorted({case for _, case, _ in group})
        scores = []
        for case in cases:
            for repeat in range(3):
                q = [(rows.get((task, case, i)) or (0, 0, 0))[repeat] or 0 for i in range(1, 7)]
                if q[0] + q[1] < 2:
                    q[2:] = [0] * 4
                elif q[2] + q[3] < 2:
                    q[4:] = [0] * 2
                scores.append(F(sum(q), 6))
        tasks[task] = 100 * sum(scores) / len(scores)
    of = {name: [x for t, x in tasks.items() if category_of.get(t) == name] for name in names}
    categories = {name: sum(xs) / len(xs) if xs else F(0) for name, xs in of.items()}
    return tasks, categories, sum(categories.values()) / len(names)


def ice_bench(items):
    """items: list of (task, metrics), with the formulas of the supplement and the official code."""
    tasks = {}
    for task in dict.fromkeys(t for t, _ in items):
        of = [metrics for t, metrics in items if t == task]
        m = {name: sum(F(x[name]) for x in of) / len(of) for name in of[0]}
        a, i, c = m["aes_v2.5"] / 10, m["musiq_koniq"] / 100, m.get("clip_cap", F(0)) * 2
        if task == "Text2Image":
            tasks[task] = (a + i + c) / 3
        elif task.endswith("Reference Generation"):
            ref = {"Face": "face_ref", "Subject": "dino_ref", "Style": "style_ref"}[task.split()[0]]
            tasks[task] = (a + i + c + m[ref]) / 4
        elif task == "Image Deblur":
            tasks[task] = F("0.3") * (a + i) + F("0.2") * (i + m["ssim"])
        elif task == "Image Colorize":
            pf = F("0.75") * c + F("0.25") * m["colorfulness"]
            tasks[task] = F("0.3") * (a + i) + F("0.2") * (pf + m["l1_colorize"])
        elif task.endswith("-guided Generation"):
            control = {"Pose": "l1_pose", "Depth": "l1_depth", "Edge": "l1_canny"}[task.split("-")[0]]
            tasks[task] = F("0.3") * (a + i) + F("0.2") * (c + m[control])
        else:
            pf, sc = (c + m["vllmqa"]) / 2, (m["clip_src"] + 1 - m["l1_raw"]) / 2
            references = {"Virtual Try On": "dino", "Subject-guided Inpainting": "dino"}
            ref = (references | {"Face Swap": "face", "Style Reference Editing": "style"}).get(task)
            if ref:
                tasks[task] = F("0.25") * (a + i) + F("0.2") * (pf + m[f"{ref}_ref"]) + F("0.1") * sc
            else:
                tasks[task] = F("0.3") * (a + i + pf) + F("0.1") * sc
    return tasks, sum(tasks.values()) / len(tasks)
