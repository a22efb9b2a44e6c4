"""Results computed on frames equal those computed row by row, on random runs."""

import hashlib
import io
import json
import sqlite3
from collections import defaultdict

import pyarrow.parquet as pq
import pytest

from local_bench.analysis.digest import digests
from local_bench.analysis.settlement import deliverables
from local_bench.core.types import Decision, Score, canonical_json, json_lines
from local_bench.report.exports import write_exports
from local_bench.report.view import score_intervals
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import decide
from local_bench.runs.store import scored, scores_by_image
from local_bench.runs.store.contents import file_digests, record, recorded
from local_bench.settle.intervals import mean_interval, rate_interval, share_interval
from local_bench.settle.settlement import Total, settle
from tests.lines import frame, lines
from tests.runs.random_run import decisions_by_row, random_run, stored_decisions


def total_by_row(rows) -> Total:
    tasks = [[line for line in rows if line.task_id == name] for name in sorted({line.task_id for line in rows})]
    earned = [sum(x.revenue_micro_usd for x in of) for of in tasks]
    values = [of[0].price_micro_usd for of in tasks]
    passed = [sum(x.decision.accepted is True for x in of) for of in tasks]
    ends = share_interval(earned, values)
    still_open = sum(x.part_micro_usd for x in rows if x.decision.accepted is None)
    n, whole = len(rows), sum(all(x.decision.accepted for x in of) for of in tasks)
    decided = sum(x.decision.accepted is not None for x in rows)
    return Total(
        sum(values),
        sum(earned),
        None if ends is None else (round(ends[0] * sum(values)), round(ends[1] * sum(values))),
        still_open,
        sum(of[0].price_micro_usd for of in tasks if all(x.decision.accepted for x in of)),
        len(tasks),
        whole,
        sum(any(x.decision.accepted is None for x in of) for of in tasks),
        sum(any(x.decision.accepted is not None for x in of) for of in tasks),
        decided,
        sum(passed),
        sum(x.decision.accepted is None for x in rows),
        *(rate_interval(passed, [len(of) for of in tasks]) or (0, 1)),
        sum(earned) / sum(values) if any(values) else None,
        1 - still_open / sum(values) if any(values) else decided / n,
        whole / len(tasks),
        sum(passed) / n,
    )


def digests_by_row(run) -> dict[str, str]:
    store = run.store

    def sha256(query, change=list):
        texts = (canonical_json(change(list(row))) for row in store.rows(query))
        return hashlib.sha256("".join(f"{text}\n" for text in texts).encode()).hexdigest()

    def loaded(row):
        return [*row[:6], row[6] and json.loads(row[6]), row[7] and json.loads(row[7]), row[8]]

    decisions = [
        list(r) for r in store.rows("SELECT work_id, accepted, unscored, price_micro_usd FROM decisions ORDER BY 1")
    ]
    totals = [
        [s.model, s.total.value_micro_usd, s.total.revenue_micro_usd, s.total.n, s.total.n_accepted, s.total.n_unscored]
        for s in settle(frame(lines(store)), {})
    ]
    parts = [run.config.acceptance.model_dump(), decisions, totals]
    return {
        "candidates": sha256("SELECT work_id, model, state, pixels_sha256, unscored FROM candidates ORDER BY work_id"),
        "verdicts": sha256(
            """SELECT work_id, rubric, point, repeat, rubric_sha256, judge, answer, labels, unscored FROM verdicts
               ORDER BY work_id, judge, rubric, point, repeat""",
            loaded,
        ),
        "scores": sha256(
            "SELECT work_id, name, value, unscored, applies FROM scores ORDER BY work_id, name",
            lambda row: [*row[:4], bool(row[4])],
        ),
        "settlement": hashlib.sha256("".join(canonical_json(p) + "\n" for p in parts).encode()).hexdigest(),
    }


def contents_by_row(run) -> dict[tuple[str, str], str]:
    """The recorded digests of the candidates' rows by task, each from a separate query."""
    contents = {}
    for kind, order in (
        ("candidates", "work_id"),
        ("scores", "work_id, name"),
        ("verdicts", "work_id, judge, rubric, point, repeat"),
    ):
        for (task_id,) in run.store.rows("SELECT task_id FROM tasks"):
            rows = run.store.rows(
                f"""SELECT * FROM {kind} WHERE work_id IN (SELECT work_id FROM candidates WHERE task_id = ?)
                    ORDER BY {order}""",
                task_id,
            )
            texts = [json.dumps(list(row), ensure_ascii=False, separators=(",", ":")) for row in rows]
            if texts:
                contents[kind, task_id] = hashlib.sha256("".join(f"{text}\n" for text in texts).encode()).hexdigest()
    return contents


@pytest.mark.parametrize("seed", range(8))
def test_decisions_settlement_and_digests_equal_those_of_single_rows(tmp_path, seed):
    with random_run(tmp_path / "run", seed) as run:
        decide(run)
        assert stored_decisions(run) == list(decisions_by_row(run))
        rows = lines(run.store)
        settled = settle(deliverables(run.store), {})
        assert settled == settle(frame(rows), {})
        assert {s.model for s in settled} == {line.model for line in rows}
        for s in settled:
            of_model = [line for line in rows if line.model == s.model]
            assert s.total == total_by_row(of_model)
            categories = sorted({line.category for line in of_model})
            by_category = {c: total_by_row([line for line in of_model if line.category == c]) for c in categories}
            assert s.by_category == by_category
        assert digests(run) == digests_by_row(run)
        record(run.store, file_digests(run.path))
        expected = contents_by_row(run)
        kinds = {kind for kind, _ in expected}
        assert {key: sha for key, sha in recorded(run.store).items() if key[0] in kinds} == expected


def test_digests_of_rows_with_any_characters_are_those_of_pythons_json(tmp_path):
    with random_run(tmp_path / "run", 2) as run:
        odd = "".join(map(chr, [*range(1, 0x180), 0x2028, 0x2029, 0xFEFF, 0xFFFD, 0x1F5BC, 0x10FFFF]))
        run.store.write("UPDATE scores SET value = NULL, unscored = ? || substr(work_id, 1, 8) WHERE applies", odd)
        record(run.store, file_digests(run.path))
        expected = {key: sha for key, sha in contents_by_row(run).items() if key[0] == "scores"}
        assert recorded(run.store, "scores") == expected != {}


def test_reasons_of_any_text_are_stored_unchanged_and_decisions_are_not_written_again(tmp_path):
    with random_run(tmp_path / "run", 2) as run:
        done = [row.work_id for row in run.store.candidates() if row.state == "done"]
        texts = ("a", "it's", 'a "b"\n', "päper \U0001f5bc", "{?}", "'' || ''")
        run.store.enter_scores("judge", [(i, Score("brf", None, texts[k % 6])) for k, i in enumerate(done)])
        decide(run)
        assert stored_decisions(run) == list(decisions_by_row(run))
        record(run.store, file_digests(run.path))
        expected = recorded(run.store)
        run.store.db.written.clear()
        decide(run)
        assert not run.store.db.written
        run.store.write("UPDATE decisions SET price_micro_usd = 1")
        run.store.write("DELETE FROM decisions WHERE work_id = (SELECT max(work_id) FROM decisions)")
        run.store.db.written.clear()
        decide(run)
        assert run.store.db.written == {"decisions"}
        record(run.store, file_digests(run.path))
        assert recorded(run.store) == expected


def test_a_result_is_computed_again_after_a_write_of_any_process(tmp_path):
    with random_run(tmp_path / "run", 4) as run:
        computed = []

        def compute():
            computed.append(1)
            return len(computed)

        assert [run.store.once("n", compute) for _ in range(3)] == [1, 1, 1]
        run.store.set_meta("x", "1")
        assert run.store.once("n", compute) == run.store.once("n", compute) == 2
        with sqlite3.connect(tmp_path / "run" / "ledger.sqlite") as other:
            other.execute("UPDATE meta SET value = '2' WHERE key = 'x'")
        other.close()
        assert run.store.once("n", compute) == run.store.once("n", compute) == 3


@pytest.mark.parametrize("seed", range(4))
def test_intervals_of_scores_are_those_of_single_rows(tmp_path, seed):
    with random_run(tmp_path / "run", seed) as run:
        expected = {}
        candidates = {row.work_id: row for row in run.store.candidates()}
        by_task = defaultdict(lambda: defaultdict(list))
        for row in sorted(run.store.scores(), key=lambda row: candidates[row.work_id].position):
            candidate = candidates[row.work_id]
            if row.score.value is not None:
                by_task[row.score.name, candidate.model][candidate.task_id].append(row.score.value)
        for (name, model), tasks in by_task.items():
            scale = (0, 5) if name in ("brf", "veq", "cns") else None
            if ends := mean_interval([*map(sum, tasks.values())], [*map(len, tasks.values())], scale):
                expected[name, model] = pytest.approx(ends, rel=1e-12)
        assert score_intervals(run) == expected


def test_exports_in_many_parts_are_those_in_one(tmp_path, monkeypatch):
    with random_run(tmp_path / "run", 3) as run:
        decide(run)
    with RunDir.open(tmp_path / "run") as run:
        expected_files = {path.name: path.read_bytes() for path in write_exports(run)}
        monkeypatch.setattr("local_bench.report.exports._BYTES_AT_ONCE", 0)
        for path in write_exports(run):
            if path.suffix == ".csv":
                assert path.read_bytes() == expected_files[path.name]
            else:
                assert pq.read_table(path).equals(pq.read_table(io.BytesIO(expected_files[path.name])))


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_images_have_three_states(tmp_path, seed):
    with random_run(tmp_path / "run", seed) as run:
        ids = run.store.frame("candidates", ["work_id"], "attempt = 1")["work_id"]
        scores = run.store.scores_by_candidate("judge")
        table = scores_by_image(run.store, ids, ["brf", "veq"], "judge", reasons=True)
        assert len(table) == len(ids)
        for name in table:
            for work_id, cell in zip(ids, table[name], strict=True):
                score = scores.get(work_id, {}).get(name)
                assert cell == (
                    None if score is None else "not applicable" if not score.applies
                    else score.value if score.value is not None else f"unscored: {score.unscored}"
                )  # fmt: skip
        run.store.enter_scores("judge", [(ids.iloc[0], Score("only", None, "no answer"))])
        table = scores_by_image(run.store, ids, ["only", "never"])  # not inferred to be texts, whose None is NaN
        assert table["only"].tolist() == ["unscored", *[None] * (len(ids) - 1)]
        assert table["never"].tolist() == [None] * len(ids)
        rows = run.store.frame("scores")
        assert scored(rows)["value"].dtype == float
        assert len(scored(rows)) == sum(row.score.value is not None for row in run.store.scores())
        # a mean over all rows is another number once a missing value is taken for one
        assert rows["value"].fillna(0).mean() < scored(rows)["value"].mean()


def test_an_unscored_candidate_without_a_reason_is_undecided(tmp_path):
    with random_run(tmp_path / "run", 7) as run:
        run.store.write("UPDATE candidates SET state = 'unscored', unscored = NULL WHERE position = 0")
        work_id = next(run.store.each_candidate()).work_id
        decide(run)
        undecided = Decision(None, "no reason given")
        assert dict(stored_decisions(run))[work_id] == undecided


def test_sums_beyond_64_bits_are_exact(tmp_path):
    with random_run(tmp_path / "run", 5, highest_price=2**63 - 1) as run:
        decide(run)
        settled, rows = settle(deliverables(run.store), {}), lines(run.store)
    assert max(s.total.value_micro_usd for s in settled) > 2**63
    for s in settled:
        own = {line.task_id: line.price_micro_usd for line in rows if line.model == s.model}
        assert s.total.value_micro_usd == sum(own.values())
        assert s.total.revenue_micro_usd == sum(line.revenue_micro_usd for line in rows if line.model == s.model)


def test_canonical_lines_of_rows_that_contain_separators_are_correct():
    rows = [("a],[b", 1.5, None), ([[1], [2]], True, "x\ny"), ({"b": 1, "a": 2}, "", -0.0)]
    assert json_lines(rows) == [canonical_json(row) for row in rows]
    assert json_lines([(1,), (2,)]) == ["[1]", "[2]"]
    assert json_lines([]) == []


def test_a_ledger_of_an_earlier_release_is_indexed_when_it_is_opened_for_writing(tmp_path):
    with random_run(tmp_path / "run", 3) as run:
        decide(run)
        expected = digests(run)
        run.store.write("DROP INDEX candidates_results")
    with RunDir.open(tmp_path / "run") as run:
        assert digests(run) == expected
        config = run.config
        assert not run.store.rows("SELECT 1 FROM sqlite_master WHERE name = 'candidates_results'")
    with RunDir.begin(tmp_path / "run", config) as run:
        assert run.store.rows("SELECT 1 FROM sqlite_master WHERE name = 'candidates_results'")
        assert digests(run) == expected
