"""The page: hostile text stays text, missing values are reported, the sums are the ledger's."""

import base64
import hashlib
import itertools
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from local_bench.analysis.settlement import accounting
from local_bench.core.errors import LedgerError
from local_bench.core.money import held_cost
from local_bench.report import gallery, text
from local_bench.report.images import LONG_SIDE
from local_bench.report.page import write_report
from local_bench.report.provenance import tree
from local_bench.runs.rundir import RunDir

MakeRun = Callable[..., Path]
TAGS = """html head meta title style body header main footer nav section article aside h1 h2 h3 h4 p ul li a div
span br strong table caption thead tbody tfoot tr th td svg title line polyline circle details summary figure figcaption
img dl dt dd pre code"""


class Page(HTMLParser):
    """The page's tags with their attributes, its text, and the text of each table cell by the table's caption id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._table = ""
        self._cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "caption":
            self._table = dict(attrs)["id"] or ""
            self.tables[self._table] = []
        elif tag == "tr" and self._table:
            self.tables[self._table].append([])
        elif tag in ("td", "th") and self._table:
            self.tables[self._table][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False
        elif tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._cell:
            self.tables[self._table][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def faults(self) -> list[str]:
        """Everything in the page that could do more than be read."""
        found = [f"<{tag}>" for tag, _ in self.tags if tag not in TAGS.split()]
        for tag, attributes in self.tags:
            for name, value in attributes.items():
                if name.startswith("on") or name in ("style", "srcset", "action"):
                    found.append(f"{tag} {name}")
                if name == "src" and not str(value).startswith("data:image/webp;base64,"):
                    found.append(f"{tag} src={value}")
                if name == "href" and not str(value).startswith("#"):
                    found.append(f"{tag} href={value}")
        if sum(tag == "style" for tag, _ in self.tags) != 1:
            found.append("several styles")
        return found


def report(path: Path) -> Page:
    with RunDir.open(path) as run:
        assert write_report(run) == path / "report" / "index.html"
    return Page((path / "report" / "index.html").read_text("utf-8"))


def micro(dollars: str) -> int:
    return int(Decimal(dollars.replace("$", "").replace(",", "")) * 1_000_000)


def test_hostile_text_is_escaped(make_run: MakeRun) -> None:
    page = report(make_run())
    assert page.faults() == []
    assert "<script" not in page.html.lower()
    assert "<svg onload" not in page.html
    assert page.html.count("</style>") == 1
    for payload in ("<script>alert(1)</script>", '"><svg onload=alert(2)>', "</style><style>*{display:none}</style>"):
        assert payload in page.text


@pytest.mark.parametrize(
    "payload",
    ["<script>1</script>", '<img src="http://evil.example/">', "<p onclick=x>", '<a href="file:///etc">', "<style>"],
)
def test_the_check_for_faults_finds_them(payload: str, make_run: MakeRun) -> None:
    page = report(make_run())
    assert Page(page.html.replace("<main>", "<main>" + payload)).faults()


def test_hidden_characters_are_made_visible(make_run: MakeRun) -> None:
    page = report(make_run())
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x00-\x08]", page.html)
    assert "evil⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+200B⟩⟨U+0007⟩⟨U+0000⟩" in page.text
    assert text.clean("a\r\nb\tc \ud800 👩‍🚀") == "a\nb\tc ⟨U+D800⟩ 👩‍🚀"


def test_the_policy_allows_the_one_style_and_nothing_else(make_run: MakeRun) -> None:
    page = report(make_run())
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    style = page.html.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'")
    assert "unsafe" not in policy
    assert "script" not in policy
    assert "url(" not in style
    assert "@import" not in style


def test_unscored_values_have_their_reason(make_run: MakeRun) -> None:
    page = report(make_run(no_source=True))
    assert "? unscored: veq: the answer was cut off <script>alert(1)</script>" in page.text
    assert "veq unscored the answer was cut off <script>alert(1)</script>" in page.text
    assert "veq_text n/a" in page.text
    assert "piqe missing" in page.text
    assert "not generated: The source image is not there" in page.text
    scores = page.tables["t-scores"]
    assert scores[scores.index(["veq"]) + 2] == ["beta", "3.50 0.03 to 4.99", "2", "1", "0", "1"]
    assert scores[scores.index(["veq_text"]) + 1] == ["alpha", "n/a", "0", "0", "3", "1"]
    assert scores[scores.index(["piqe"]) + 2] == ["beta", "41.25", "2", "0", "0", "2"]


def test_a_metric_has_its_direction_and_enough_digits(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.set_meta("metric:piqe", '{"higher_is_better": false}')
        run.store.write("UPDATE scores SET value = 0.28349 WHERE name = 'piqe'")
    page = report(path)
    scores = page.tables["t-scores"]
    assert scores[scores.index(["piqe lower is better"]) + 2][1] == "0.2835"
    assert ["veq"] in scores  # the judge's go from 0 to 5 and need no explanation


def test_a_rejected_image_has_the_thresholds_that_it_misses(make_run: MakeRun) -> None:
    path = make_run()
    assert "✗ not accepted: brf 2.50 < 3" in report(path).text
    with RunDir.open(path) as run:
        run.store.write("UPDATE scores SET value = 2.9999 WHERE name = 'brf' AND value < 3")
    assert "✗ not accepted: brf 2.9999 < 3" in report(path).text  # not 3.00 < 3


def test_the_root_is_part_of_the_provenance(make_run: MakeRun) -> None:
    text = report(make_run()).text
    assert text.rindex("Provenance") < text.index("Root of all results")


def test_all_means_of_a_score_have_the_same_decimals(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        alpha = "(SELECT work_id FROM candidates WHERE model = 'alpha')"
        run.store.write(f"UPDATE scores SET value = 9.87654 WHERE name = 'piqe' AND work_id IN {alpha}")
    scores = report(path).tables["t-scores"]
    at = scores.index(["piqe"])
    assert [row[1].split()[0] for row in scores[at + 1 : at + 3]] == ["9.88", "41.25"]


def test_the_banner_appears_below_the_required_coverage_only(make_run: MakeRun) -> None:
    page = report(make_run(coverage_min=0.7))
    assert "beta: 63.0 % of the tasks' value could be settled, less than the required 70.0 %" in page.text
    assert "alpha: 1" not in page.text


def test_a_settled_run_has_no_banner(make_run: MakeRun) -> None:
    assert "banner" not in {a.get("class") for _, a in report(make_run(coverage_min=0.6)).tags}


def test_the_banner_names_unfinished_work(make_run: MakeRun) -> None:
    page = report(make_run(planned=True))
    assert "beta: 1 of 3 images have not been generated yet." in page.text
    assert "beta: 1 of 3 deliverables have no decision yet" in page.text
    assert "not generated yet" in page.text


def test_models_with_equal_pixels_are_reported(make_run: MakeRun) -> None:
    path = make_run(coverage_min=0.6)
    with RunDir.open(path) as run:
        first = {(row.task_id, row.deliverable): row for row in run.store.candidates() if row.model == "alpha"}
        other = next(row for row in run.store.candidates() if row.model == "beta" and row.state == "done")
    same = first[other.task_id, other.deliverable].pixels_sha256
    with closing(sqlite3.connect(path / "ledger.sqlite")) as db, db:
        db.execute("UPDATE candidates SET pixels_sha256 = ? WHERE work_id = ?", (same, other.work_id))
    assert "alpha, beta have the same pixels in 1 image of the same deliverables" in report(path).text


def test_a_run_that_has_just_begun_has_a_page(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        for table in ("decisions", "scores", "verdicts", "meter"):
            run.store.write(f"DELETE FROM {table}")
        run.store.write("UPDATE candidates SET state = 'planned', pixels_sha256 = NULL, identity = NULL")
    page = report(path)
    assert "alpha: 3 of 3 images have not been generated yet." in page.text
    assert [row[3:7] for row in page.tables["t-settlement"][1:]] == [
        ["0/2", "0/3 0.0 % to 98.9 %", "3 $135.00 open", "not metered"]
    ] * 2
    assert ["alpha", "missing", "0", "0", "0", "3"] in page.tables["t-scores"]
    assert "no device time was metered" in page.text
    assert page.faults() == []


def test_revenues_are_those_of_the_ledger(make_run: MakeRun) -> None:
    path = make_run()
    page = report(path)
    rows = {row[0]: row for row in page.tables["t-settlement"][1:]}
    with RunDir.open(path) as run:
        settled = {s.model: s for s in accounting(run.store, run.config.settlement).settlements}
    assert {model: micro(row[1].split()[0]) for model, row in rows.items()} == {"alpha": 135_000_000, "beta": 0}
    assert rows["alpha"][2].strip() == "100.0 %"
    assert rows["alpha"][3:5] == ["2/2", "3/3 1.1 % to 100.0 %"]
    assert rows["beta"][5] == "1 $50.00 open"
    assert micro(rows["alpha"][6]) == settled["alpha"].cost_micro_usd


def test_costs_add_up_to_the_held_time(make_run: MakeRun) -> None:
    path = make_run()
    page = report(path)
    rows = page.tables["t-costs"][1:]
    with RunDir.open(path) as run:
        held_ns = run.store.rows("SELECT sum(t1_ns - t0_ns) AS ns FROM meter")[0]["ns"]
    total = held_cost(held_ns, 1_800_000)
    assert sum(micro(row[-1]) for row in rows[:-1]) == total
    assert micro(rows[-1][-1]) == total
    assert rows[-1][0] == "Whole run"
    assert rows[-1][1] == "1 min 20 s"
    assert rows[3][:5] == ["judge", "whole run", "1 min 01 s", "12", "9.0 J"]
    assert rows[-1][3] == "at least 18.0 J"
    assert "on none of the rows" not in page.text


def test_held_time_that_is_not_metered_is_reported(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("UPDATE sessions SET held_ns = held_ns + 5000000000")
    assert "5.0 s of held time is on none of the rows." in report(path).text


def test_without_a_price_costs_are_not_zero(make_run: MakeRun) -> None:
    path = make_run(price=None)
    with RunDir.open(path) as run:
        run.store.write("UPDATE sessions SET device = 'an unheard-of device'")
    page = report(path)
    assert "The price table has no row for the device of this run" in page.text
    assert {row[-1] for row in page.tables["t-costs"][1:]} == {"no price"}
    assert [row[-2:] for row in page.tables["t-settlement"][1:]] == [["no price"] * 2] * 2


def test_images_are_small_and_described_and_a_missing_one_is_reported(make_run: MakeRun) -> None:
    path = make_run()
    next((path / "images").rglob("*.png")).unlink()
    page = report(path)
    images = [a for tag, a in page.tags if tag == "img"]
    assert len(images) == 6  # five candidates and the image to edit
    assert all(a["alt"] and max(int(a["width"] or 0), int(a["height"] or 0)) == LONG_SIDE for a in images)
    assert "the image file is missing, damaged or altered" in page.text
    assert "missing or damaged Reference image 1" in page.text  # its name leads out of the run directory


def test_verdicts_have_question_and_answer(make_run: MakeRun) -> None:
    page = report(make_run())
    assert "brf The lamp is lit" in page.text
    assert '{"met": 1}' in page.text
    assert "unscored: the answer was cut off" in page.text


def test_headings_are_in_order_and_table_headers_have_a_scope(make_run: MakeRun) -> None:
    page = report(make_run())
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(a.get("scope") in ("col", "row", "rowgroup") for tag, a in page.tags if tag == "th")
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_the_same_ledger_gives_the_same_page(make_run: MakeRun) -> None:
    path = make_run()
    assert report(path).html == report(path).html


def test_a_large_run_lists_its_first_orders_and_counts_the_others(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "MAX_ORDERS", 1)
    page = report(make_run())
    assert sum(tag == "article" for tag, _ in page.tags) == 1
    assert "The first 1 tasks are shown; 1 more are left out here." in page.text


def test_an_invalid_task_is_explained(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("UPDATE tasks SET content = '[]'")
    with RunDir.open(path) as run, pytest.raises(LedgerError, match="task 't1' is invalid"):
        write_report(run)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, None, '{"a": [{"b": null}]}'])
def test_any_provenance_makes_a_page(make_run: MakeRun, content: str | None) -> None:
    path = make_run()
    (path / "provenance.json").unlink()
    if content is not None:
        (path / "provenance.json").write_text(content)
    assert report(path).faults() == []


def test_deep_provenance_ends_as_json() -> None:
    deep: object = "x"
    for _ in range(10):
        deep = {"k": deep}
    node, depth = tree(deep), 0
    while not isinstance(node, str):
        node, depth = node[0][1], depth + 1
    assert depth == 6
    assert node.startswith('{"k":')


@pytest.mark.parametrize(
    ("ns", "expected"),
    [
        (0, "0 ms"),
        (310_000_000, "310 ms"),
        (4_200_000_000, "4.2 s"),
        (189_000_000_000, "3 min 09 s"),
        (7.5e12, "2 h 05 min"),
    ],
)
def test_durations(ns: float, expected: str) -> None:
    assert text.duration(int(ns)) == expected
