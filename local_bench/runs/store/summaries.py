"""Numbers and distinct values over all tasks and candidates."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from local_bench.core import strictjson
from local_bench.core.identity import canonical_json
from local_bench.core.types import UNSUPPORTED
from local_bench.runs.store.contents import ContentStore
from local_bench.runs.store.rows import Counts, GeneratedRow, ModelProgress, UnscoredItems, truncated_tokens


class SummaryStore(ContentStore):
    """Access to totals. Rows are returned in the order stated in each docstring."""

    def task_totals(self) -> tuple[int, int]:
        """(number of tasks, their value in micro-USD)"""
        row = self.rows("SELECT count(*), coalesce(sum(price_micro_usd), 0) FROM tasks")[0]
        return int(row[0]), int(row[1])

    def task_of_other(self, own: Sequence[tuple[str, str]], categories: Collection[str]) -> str | None:
        """A task that lacks a value of one of these types in `Task.own`, or has none of the categories; None if all
        tasks are as a benchmark's."""
        differs = ["json_type(content, ?) IS NOT ?"] * len(own)
        differs += [f"category NOT IN ({', '.join('?' * len(categories))})"] if categories else []
        values = [value for key, kind in own for value in (f"$.own.{key}", kind)]
        query = f"SELECT task_id FROM tasks WHERE {' OR '.join(differs) or 'FALSE'} ORDER BY position LIMIT 1"
        return next((str(row["task_id"]) for row in self.rows(query, *values, *categories)), None)

    def shared_images(self) -> dict[tuple[str, ...], int]:
        """Models with the same pixels for a deliverable -> the number of such images."""
        rows = self.rows(
            """SELECT models, count(*) FROM (
                 SELECT group_concat(model, char(10)) AS models FROM (
                   SELECT DISTINCT task_id, deliverable, pixels_sha256, model FROM candidates
                   WHERE state = 'done' ORDER BY task_id, deliverable, pixels_sha256, model)
                 GROUP BY task_id, deliverable, pixels_sha256 HAVING count(*) > 1)
               GROUP BY models ORDER BY models"""
        )
        return {tuple(models.split("\n")): n for models, n in rows}

    def with_fewer_inputs(self) -> list[tuple[str, str, str]]:
        """(model, task id, the work of its first candidate) where a generated candidate may have fewer input images
        than its task: a suite may use some of them only."""
        rows = self.rows(
            """SELECT c.model, c.task_id, c.work, min(c.deliverable) FROM candidates AS c JOIN
                 (SELECT task_id, json_array_length(content, '$.reference_sha256')
                    + (json_extract(content, '$.source_sha256') IS NOT NULL)
                    + (json_extract(content, '$.mask_sha256') IS NOT NULL) AS n FROM tasks) USING (task_id)
               WHERE n > 0 AND c.attempt = 1 AND json_type(c.work, '$.pictures') = 'array'
                 AND json_array_length(c.work, '$.pictures') < n GROUP BY 1, 2"""
        )
        return [(model, task_id, work) for model, task_id, work, _ in rows]

    def unsupported(self) -> set[tuple[str, str]]:
        """(model, task id) of the tasks that a model does not support."""
        query = "SELECT DISTINCT model, task_id FROM candidates WHERE state = 'unscored' AND instr(unscored, ?) = 1"
        return {(model, task_id) for model, task_id in self.rows(query, UNSUPPORTED)}

    def models(self) -> list[str]:
        """Names of the models of the plan, sorted."""
        query = "SELECT DISTINCT model FROM candidates ORDER BY model"
        return self.once("models", lambda: [row["model"] for row in self.rows(query)], ("candidates",))

    def n_candidates(self, made: bool = False) -> dict[str, int]:
        """Model -> number of its candidates, or of its finished images."""
        where = "WHERE state = 'done'" if made else ""
        rows = self.rows(f"SELECT model, count(*) AS n FROM candidates {where} GROUP BY model ORDER BY model")
        return {row["model"]: row["n"] for row in rows}

    def planned_by_model(self) -> dict[str, int]:
        """Model -> the number of its images that have not been generated."""
        rows = self.rows("SELECT model, count(*) FROM candidates WHERE state = 'planned' GROUP BY model")
        return dict(map(tuple, rows))

    def most_attempts(self) -> int:
        """The highest number of an attempt."""
        return int(self.rows("SELECT ifnull(max(attempt), 0) FROM candidates")[0][0])

    def counts(self) -> Counts:
        where, judges = self._of_judges(None)
        row = self.rows(
            f"""SELECT count(*), coalesce(sum(state = 'done'), 0), coalesce(sum(state = 'unscored'), 0),
                (SELECT count(*) FROM verdicts WHERE {where}),
                (SELECT count(*) FROM verdicts WHERE unscored IS NOT NULL AND {where}) FROM candidates""",
            *judges,
            *judges,
        )[0]
        return Counts(*row)

    def unscored_items(self) -> list[UnscoredItems]:
        """Images, verdicts and metric scores without a value; scores that do not apply are none of either."""
        where, judges = self._of_judges(None)
        queries: dict[str, tuple[str, tuple[str, ...]]] = {
            "images": ("candidates WHERE state <> 'planned'", ()),
            "verdicts": (f"verdicts WHERE {where}", tuple(judges)),
            "metric scores": ("scores WHERE kind = 'metric' AND applies", ()),
        }
        found = []
        for what, (query, values) in queries.items():
            rows = self.rows(f"SELECT unscored, count(*) AS n FROM {query} GROUP BY 1 ORDER BY 2 DESC, 1", *values)
            reasons = tuple((reason, n) for reason, n in rows if reason is not None)
            if reasons:
                found.append(UnscoredItems(what, sum(n for _, n in rows), reasons))
        return found

    def n_unscored(self, reason: str) -> int:
        """Candidates without an image for this reason."""
        return int(self.rows("SELECT count(*) FROM candidates WHERE unscored = ?", reason)[0][0])

    def generated(self) -> list[GeneratedRow]:
        """Numbers of finished images by model, size, input images and batch size, sorted."""
        return self.once(
            "generated",
            lambda: [
                GeneratedRow(model, height, width, self._typed(_texts, inputs), batch_size, n)
                for model, height, width, inputs, batch_size, n in self.rows(_GENERATED)
            ],
        )

    def truncations(self) -> list[tuple[str, str, dict[str, int]]]:
        """(model, prompt, number of tokens that each encoder truncated) of all distinct prompts, sorted."""
        rows = self.rows(
            """SELECT DISTINCT model, prompt, truncated FROM candidates
               WHERE truncated IS NOT NULL AND truncated <> '{}' ORDER BY model, prompt, truncated"""
        )
        return [(model, prompt, self._typed(truncated_tokens, text)) for model, prompt, text in rows]

    def progress(self) -> list[ModelProgress]:
        """Numbers of candidates by model, sorted."""
        rows = self.rows(
            f"""SELECT c.model, count(*), sum(c.state = 'planned'), sum(c.attempt = 1),
                  sum(c.attempt = 1 AND d.work_id IS NULL)
                FROM {self._candidates} LEFT JOIN decisions AS d USING (work_id) GROUP BY c.model ORDER BY c.model"""
        )
        return [ModelProgress(*row) for row in rows]

    def outcomes_by_model(self) -> dict[str, str]:
        """A digest of each model's images and decisions, the same for models with equal ones of all tasks and
        attempts."""
        digests: dict[str, Any] = defaultdict(hashlib.sha256)
        for model, *image in self._stream(
            """SELECT model, task_id, deliverable, attempt, pixels_sha256, accepted
               FROM candidates LEFT JOIN decisions USING (work_id) ORDER BY model, task_id, deliverable, attempt"""
        ):
            digests[model].update(canonical_json(image).encode())
        return {model: of.hexdigest() for model, of in digests.items()}

    def image_digests(self) -> list[str]:
        """Pixel digests of all finished images, sorted."""
        found: set[str] = set()
        query = f"SELECT c.pixels_sha256 FROM {self._candidates} WHERE c.state = 'done'"
        for (digests,) in self._columns("pixels_sha256", query):
            found.update(digests)
        return sorted(found)

    def imported_models(self) -> list[str]:
        """Models with imported images."""
        return self._models_with("$.model.imported")

    def imported_costs(self) -> dict[str, int | None]:
        """Model -> cost of its imported images in micro-USD; None if any cost is unknown."""
        imported = self._models_with("$.pixels")
        if not imported:
            return {}
        rows = self.rows(
            f"""SELECT model, sum(cost_micro_usd) AS cost, count(*) - count(cost_micro_usd) AS unknown FROM candidates
                WHERE state = 'done' AND model IN ({", ".join("?" * len(imported))}) GROUP BY model""",
            *imported,
        )
        return {row["model"]: None if row["unknown"] else row["cost"] for row in rows}

    def _models_with(self, key: str) -> list[str]:
        """Models whose work has a value or null under `key`, sorted; all works of a model have the same keys. The index
        `candidates_results` has a candidate of each model among its first entries."""
        rows = self.rows(
            """SELECT model FROM (SELECT DISTINCT model FROM candidates) AS m
               WHERE (SELECT json_type(work, ?) FROM candidates WHERE work_id = (
                   SELECT c.work_id FROM candidates AS c WHERE c.model = m.model LIMIT 1)) IS NOT NULL
               ORDER BY model""",
            key,
        )
        return [row["model"] for row in rows]


_GENERATED = """SELECT model, height, width,
      iif(instr(work, '"pictures":[]'), '[]', ifnull(json_extract(work, '$.pictures'), '[]')) AS inputs, batch_size,
      count(*)
    FROM candidates WHERE state = 'done' GROUP BY model, height, width, inputs, batch_size ORDER BY 1, 2, 3, 4, 5"""


def _texts(text: str) -> tuple[str, ...]:
    found = strictjson.stored(text)
    assert isinstance(found, list)
    assert all(isinstance(one, str) for one in found)
    return tuple(found)
