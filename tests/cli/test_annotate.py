"""`local-bench annotate` without its server: import, export, status, links, forgetting, and the numbers."""

import csv
import json
import shutil
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest
from PIL import Image

from local_bench.annotation.database import FILE, AnnotationDatabase, merge_annotations
from local_bench.annotation.exchange import open_session, preferences
from local_bench.annotation.protocol import FOLDER, Answer, load_protocol
from local_bench.annotation.ratings import OVERALL, load_annotations
from local_bench.annotation.serve import lock_annotations
from local_bench.annotation.session import add_people
from local_bench.cli.main import main
from local_bench.core.errors import UserError
from local_bench.core.images import store_image
from local_bench.runs.rundir import RunDir
from tests.annotation.conftest import MODELS, answer_all, make_shop


@pytest.fixture
def shop(tmp_path):
    return make_shop(tmp_path / "shop", 8)


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def labels(shop, rater, wrong=()):
    """The decisions about every image by a rater who errs on these tasks."""
    return [
        {"model": model, "task_id": task, "deliverable": i, "attempt": attempt, "rater": rater,
         "overall": shop.right[sha] ^ (task in wrong)}
        for (model, task, i, attempt), sha in shop.images.items()
    ]  # fmt: skip


def run(capsys, *arguments, status=0):
    """The text on stdout, its JSON where `--json` is given, or with `status` stderr."""
    assert main([str(word) for word in arguments]) == status
    out, err = capsys.readouterr()
    if status:
        assert (out, err.count("\n")) == ("", 1)
        return err
    return json.loads(out) if "--json" in arguments else out


def imported(shop, capsys, path, lines, protocol="accept", status=0):
    return run(capsys, "annotate", "import", shop.path, write(path, lines), "--protocol", protocol, status=status)


def refused(capsys, *arguments):
    return run(capsys, "annotate", *arguments, status=2)


def status_of(shop, capsys):
    return run(capsys, "annotate", "status", shop.path, "--json")["protocols"]


def people_of(path, of=None):
    with RunDir.open(of or path) as opened:
        return load_annotations(path, opened, {})


def right_answers(shop):
    """For `answer_all`: whether the image is what was ordered."""
    return lambda name, item, field, key: shop.right[_sha(item, key)]


def _sha(item, key):
    return next(image.pixels_sha256 for image in item.images if str(image.deliverable) == key)


def test_two_raters_and_an_adjudicator_settle_the_tables(shop, tmp_path, capsys):
    """Imported, exported and settled: revenue by people is that of the right images, independently of the judge."""
    both = labels(shop, "r1") + labels(shop, "r2", ["print-02", "print-03"])
    n = 2 * 8 * len(MODELS)  # a set is one answer
    assert imported(shop, capsys, tmp_path / "in.jsonl", both) == f"{n} new of {n} answers; 0 were there already\n"
    assert imported(shop, capsys, tmp_path / "in.jsonl", both) == f"0 new of {n} answers; {n} were there already\n"
    with AnnotationDatabase(shop.path / FILE) as database:
        assert len(database.answers()) == n
    (status,) = status_of(shop, capsys)
    assert (status["n_complete"], status["n_disputed"]) == (16, 4)  # two tasks by two models
    answer_all(shop.path, "accept", {"third": "adjudicator"}, right_answers(shop))
    settled = run(capsys, "settle", shop.path, "--people", shop.path, "--json")["people"]
    with RunDir.open(shop.path) as opened:
        part = {task.task_id: task.price_micro_usd / len(task.deliverables) / 1e6 for task in opened.store.tasks()}
    for model in MODELS:
        paid = (part[key[1]] for key, sha in shop.images.items() if key[0] == model and shop.right[sha])
        assert settled[model]["revenue_usd"] == pytest.approx(sum(paid), abs=1e-5)
        assert settled[model]["n_unscored"] == 0
    run(capsys, "annotate", "export", shop.path, "--out", tmp_path / "out.jsonl")
    of_file = people_of(tmp_path / "out.jsonl", shop.path)
    assert of_file == people_of(shop.path)
    assert set(of_file.raters) == {"r1", "r2"}
    folder = tmp_path / "layout"
    run(capsys, "annotate", "export", shop.path, "--format", "servimage", "--out", folder)
    assert {path.name for path in folder.iterdir()} == {"r1", "r2", "third.adjudication", "consensus"}
    files = sorted((folder / "consensus").glob("*_annotations.jsonl"))
    scored = run(capsys, "score", "servimage", *files, "--tasks", folder / "consensus/tasks.jsonl", "--json")["models"]
    revenue = {model: pytest.approx(settled[model]["revenue_usd"], abs=1e-5) for model in MODELS}
    assert {model: scored[model]["revenue_usd"] for model in MODELS} == revenue


def test_an_adjudication_decides_where_one_of_two_cannot_tell(shop, tmp_path):
    """As a person who disagrees; a stale adjudication of what both accept decides nothing."""
    (key, _), (other, _) = list(shop.images.items())[:2]
    lines = [
        dict(zip(("model", "task_id", "deliverable", "attempt"), image, strict=True)) | line
        for image, second in ((key, None), (other, True))
        for line in (
            {"rater": "r1", "overall": True},
            {"rater": "r2", "overall": second},
            {"rater": "r3", "overall": False, "adjudication": True},
        )
    ]
    overall = people_of(write(tmp_path / "lines.jsonl", lines), shop.path).consensus[OVERALL]
    assert sorted(rating.decision for rating in overall.values()) == [False, True]
    with RunDir.open(shop.path) as opened:
        (work_id,) = [row.work_id for row in opened.store.candidates() if row.key == key]
    assert overall[work_id].decision is False


def test_annotations_are_bound_to_the_pixels(shop, tmp_path, capsys):
    """A copy of the run with one image replaced keeps all annotations but those of that image."""
    imported(shop, capsys, tmp_path / "in.jsonl", labels(shop, "r1"))
    other = shutil.copytree(shop.path, tmp_path / "other")
    before = people_of(shop.path).consensus[OVERALL]
    (other / FILE).unlink()
    with RunDir.open(shop.path) as opened:
        victim = opened.store.candidates()[0].work_id
    with RunDir.begin(other, opened.config) as changed:
        sha = store_image(changed.path / "images", Image.new("RGB", (64, 64), (1, 2, 3)))
        changed.store.write("UPDATE candidates SET pixels_sha256 = ? WHERE work_id = ?", sha, victim)
    after = people_of(shop.path, other).consensus[OVERALL]
    assert after == {work_id: rating for work_id, rating in before.items() if work_id != victim}


def test_a_sample_is_annotated_with_its_probabilities(shop, tmp_path, capsys):
    questions, out = tmp_path / "ask.jsonl", tmp_path / "labels.jsonl"
    run(capsys, "settle", shop.path, "--plan-labels", "0.5", "--questions", questions)
    answer_all(shop.path, "accept", {"a": "annotator", "b": "annotator"}, right_answers(shop), questions=questions)
    run(capsys, "annotate", "export", shop.path, "--out", out)
    wanted, exported = ([json.loads(line) for line in file.read_text().splitlines()] for file in (questions, out))
    names = ("model", "task_id", "deliverable", "probability")
    assert {tuple(line[name] for name in names) for line in exported} == {
        tuple(line[name] for name in names) for line in wanted
    }
    copy = shutil.copytree(shop.path, tmp_path / "copy", ignore=shutil.ignore_patterns(f"{FILE}*"))
    run(capsys, "annotate", "import", copy, out, "--protocol", "accept")
    assert lines_of(copy, tmp_path / "copy.jsonl", capsys) == sorted(out.read_text().splitlines())
    (of_copy,), (status,) = run(capsys, "annotate", "status", copy, "--json")["protocols"], status_of(shop, capsys)
    assert (of_copy["n_items"], of_copy["coverage"]) == (status["n_items"], status["coverage"])
    assert main(["settle", str(shop.path), "--people", str(shop.path)]) == 0
    text, err = capsys.readouterr()
    assert ("estimated revenue" in text, "sampling probabilities" in err) == (True, False)
    done = write(tmp_path / "done.jsonl", [line | {"overall": True} for line in wanted])
    assert "nothing to annotate" in refused(capsys, shop.path, "--questions", done)
    pairs = ("--questions", questions, "--protocol", "pairwise", "--new")
    assert "compares pairs" in refused(capsys, shop.path, *pairs)


@pytest.mark.parametrize("protocol", ["accept", "scores"])
def test_answers_of_earlier_rounds_have_the_probabilities_of_the_next_one(protocol, tmp_path, capsys):
    """As in the round's file: certain, so that they do not stand for what is drawn now; also where `scores` shows an
    image again with its set. What nobody has answered yet is a part of the sample."""
    large, (first, second, out) = make_shop(tmp_path / "large", 30), (tmp_path / f"{i}.jsonl" for i in range(3))

    def right(name, item, field, key):
        return (5 if large.right[_sha(item, key)] else 1) if protocol == "scores" else large.right[_sha(item, key)]

    def models(people, *more):
        return run(capsys, "settle", large.path, "--people", people, *more, "--json")["labels"]

    run(capsys, "settle", large.path, "--plan-labels", "0.5", "--questions", first)
    answer_all(large.path, protocol, dict.fromkeys("ab", "annotator"), right, questions=first)
    models(large.path, "--plan-labels", "0.15", "--questions", second)
    lines = [json.loads(line) for line in second.read_text().splitlines()]
    drawn = [line for line in lines if line["overall"] is None]
    assert 0 < len(drawn) < len(lines)
    with RunDir.open(large.path) as opened:
        open_session([opened], load_protocol(protocol), second).database.close()
    begun = [model["estimates"]["revenue_share"] for model in models(large.path).values()]
    whole_sets = sum(share["n_labelled"] for share in begun) - (len(lines) - len(drawn))
    assert sum(share["n_unanswered"] for share in begun) == len(drawn) - whole_sets
    assert (whole_sets > 0) == (protocol == "scores")
    answer_all(large.path, protocol, {}, right, questions=second)
    key = ("model", "task_id", "deliverable")
    filled = [line | {"overall": large.right[large.images[(*(line[k] for k in key), 1)]]} for line in lines]
    assert models(large.path) == models(write(tmp_path / "filled.jsonl", filled))
    run(capsys, "annotate", "export", large.path, "--out", out)
    assert models(out) == models(large.path)


def test_all_images_end_a_sample(shop, tmp_path, capsys):
    """What was sampled has no probability then. An image of the sample is shown again with its set: the later answer
    of an annotator counts."""
    (model, task, *_), *_ = [key for key in shop.images if key[2] == 2]
    line = {"model": model, "task_id": task, "deliverable": 2, "probability": 0.5, "overall": None}
    people = dict.fromkeys("ab", "annotator")
    answer_all(shop.path, "accept", people, lambda *_: False, questions=write(tmp_path / "ask.jsonl", [line]))
    assert set(people_of(shop.path).probabilities.values()) == {0.5}
    answer_all(shop.path, "accept", {}, lambda *_: True, questions=())
    found = people_of(shop.path)
    assert set(found.probabilities.values()) == {None}
    assert set(found.decisions().values()) == {True}
    settled = run(capsys, "settle", shop.path, "--people", shop.path, "--json")["people"]
    assert {model["deliverable_acceptance"] for model in settled.values()} == {1}


def test_consistency_is_a_question_only_where_something_can_be_compared(shop, tmp_path, capsys):
    """Without a source image and other images of the set CNS is not answered, and no number of the run has it."""
    people = dict.fromkeys(("a", "b"), "annotator")
    answer_all(shop.path, "scores", people, lambda name, item, field, key: 4 + (name == "b"))
    with RunDir.open(shop.path) as opened:
        compared = {t.task_id: bool(t.source_sha256 or len(t.deliverables) > 1) for t in opened.store.tasks()}
        of_task = {row.work_id: row.task_id for row in opened.store.candidates()}
    assert set(compared.values()) == {True, False}
    consensus = people_of(shop.path).consensus
    assert {of_task[work_id] for work_id in consensus["cns"]} == {task for task, has in compared.items() if has}
    assert consensus["brf"].keys() == consensus["veq"].keys() == of_task.keys()
    with AnnotationDatabase(shop.path / FILE) as database:
        assert {len(values) for answer in database.answers() for values in answer.given.values.values()} == {2, 3}
    n = sum(compared[task] for _, task, _, _ in shop.images)
    (status,) = status_of(shop, capsys)
    assert {field["name"]: field["n_units"] for field in status["fields"]} == {"brf": 20, "veq": 20, "cns": n}
    exported = tmp_path / "out.jsonl"
    run(capsys, "annotate", "export", shop.path, "--out", exported)
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    assert all((line["cns"] is None) != compared[line["task_id"]] for line in lines)
    again = imported(shop, capsys, exported, [line | {"rater": f"{line['rater']}2"} for line in lines], "scores")
    assert again == "32 new of 32 answers; 0 were there already\n"
    for command in ("agreement", "settle"):
        run(capsys, command, shop.path, "--people", shop.path)
    run(capsys, "annotate", "export", shop.path, "--format", "servimage", "--out", tmp_path / "layout")


def test_a_sampled_image_is_shown_with_what_it_is_compared_with(shop, tmp_path):
    (model, task, _, _), *_ = [key for key in shop.images if key[2] == 2]
    line = {"model": model, "task_id": task, "deliverable": 2, "probability": 0.5, "overall": None}
    questions = write(tmp_path / "ask.jsonl", [line])
    for protocol, n in (("scores", 2), ("points", 2), ("accept", 1)):
        with RunDir.open(shop.path) as opened:
            session = open_session([opened], load_protocol(protocol), questions)
            with session.database:
                (item,) = session.queue.items
                assert (len(item.images), item.sampled) == (n, ((model, 2, 0.5),))


def test_points_become_the_benchmarks_score(shop):
    people = dict.fromkeys("abc", "annotator")
    answer_all(shop.path, "points", people, lambda name, item, field, key: field != "point_2")
    scores = people_of(shop.path).consensus["brf"]
    with RunDir.open(shop.path) as opened:
        points = {task.task_id: len(task.evaluation_points) for task in opened.store.tasks()}
        for row in opened.store.candidates():
            n = points[row.task_id]
            assert scores[row.work_id].number == pytest.approx(5 * (n - 1) / n)


def test_pairs_rank_the_models(shop, capsys):
    better = MODELS[1]
    images = {sha for (model, *_), sha in shop.images.items() if model == better}

    def prefer(name, item, field, key):
        first_is_better = item.images[0].pixels_sha256 in images
        with_left_a = sides[name, item.item_id] == "a"
        return "left" if first_is_better == with_left_a else "right"

    sides = {}
    with RunDir.open(shop.path) as opened:
        session = open_session([opened], load_protocol("pairwise"), repeats=0)
        with session.database:
            for name in "abc":
                session.queue.add(name, "annotator")
                sides |= {(name, i): session.queue.left_side(name, i, "answer") for i in session.queue.by_id}
    answer_all(shop.path, "pairwise", dict.fromkeys("abc", "annotator"), prefer)
    with RunDir.open(shop.path) as opened:
        first, second = preferences(opened)
    assert (first.model, first.win_rate, second.win_rate) == (better, 1, 0)
    assert first.strength > 2
    assert first.strength == pytest.approx(-second.strength)
    assert run(capsys, "annotate", "ranking", shop.path).splitlines()[2].startswith(better)
    assert run(capsys, "annotate", "ranking", shop.path, "--json")["notes"] == []


@pytest.mark.parametrize("second", MODELS)
def test_models_of_two_runs_are_compared(second, tmp_path, capsys):
    """Also those of one name, whose sets are not mixed; ranking and CSV need both runs."""
    a, b = (
        make_shop(tmp_path / x, 4, models=[model], seed=i)
        for i, (x, model) in enumerate(zip("ab", (MODELS[0], second), strict=True))
    )
    expected = {f"{path}/{MODELS[0]}" for path in (a.path, b.path)} if second == MODELS[0] else set(MODELS)
    with RunDir.open(a.path) as of_a, RunDir.open(b.path) as of_b:
        for protocol in ("pairwise", "accept"):
            with open_session([of_a, of_b], load_protocol(protocol)).database as database:
                items = [item for item in database.items().values() if item.protocol == protocol]
            assert items
            for item in items:
                for side in (item.images, item.other):
                    assert [image.deliverable for image in side] == list(range(1, len(side) + 1))
        session = open_session([of_a, of_b], load_protocol("pairwise"), repeats=0)
        with session.database as database:
            add_people(database, {"x": "annotator"}, "en")
            session.queue.add("x", "annotator")
            (x,) = database.annotators()
            for n, item in enumerate(session.queue.items):
                answer = Answer(
                    {"": {"preferred": "left"}}, left="a" if item.images[0].pixels_sha256 in a.right else "b"
                )
                session.answer(x, f"request-{n}", item.item_id, "answer", answer, 1)
    ranked = run(capsys, "annotate", "ranking", a.path, b.path, "--json")["models"]
    assert {model["model"] for model in ranked} == expected
    assert [(model["wins"], model["losses"]) for model in ranked] == [(n + 1, 0), (0, n + 1)]
    assert "give all runs that were annotated together" in refused(capsys, "ranking", a.path)
    run(capsys, "annotate", "export", a.path, b.path, "--out", tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        assert {name for row in csv.DictReader(file) for name in (row["model"], row["other_model"])} == expected
    assert "only a .csv file" in refused(capsys, "export", a.path, b.path, "--out", tmp_path / "all.jsonl")


def test_forgetting_and_links(shop, tmp_path, capsys):
    imported(shop, capsys, tmp_path / "in.jsonl", labels(shop, "r1") + labels(shop, "r2"))
    assert "give its address with --base" in refused(capsys, "link", shop.path, "r1")
    base = ("--base", "https://annotate.lab.org/")
    first, second = (run(capsys, "annotate", "link", shop.path, "r1", *base).strip() for _ in range(2))
    assert second.startswith("https://annotate.lab.org/a/")
    with AnnotationDatabase(shop.path / FILE) as database:
        assert database.annotator_of(first.rpartition("/")[2]) is None
        assert database.annotator_of(second.rpartition("/")[2]).name == "r1"
    assert "did you mean 'r2'" in refused(capsys, "forget", shop.path, "r22", "--yes")
    assert run(capsys, "annotate", "forget", shop.path, "r1", "--yes", "--json") == {"name": "r1", "n_answers": 16}
    assert b'r1"' not in (shop.path / FILE).read_bytes()
    assert set(people_of(shop.path).raters) == {"r2"}
    with lock_annotations(shop.path):
        assert "server is running" in run(capsys, "annotate", "forget", shop.path, "r2", "--yes", status=1)


def test_known_answers_check_the_annotators(shop, tmp_path, capsys):
    """Everyone gets the questions with known answers."""
    lines = [{k: v for k, v in line.items() if k != "rater"} | {"overall": True} for line in labels(shop, "x")[:4]]
    wrong = write(tmp_path / "wrong.jsonl", [lines[0] | {"deliverable": 1.0}])
    assert "deliverable: input should be a valid integer, not 1.0" in refused(capsys, shop.path, "--gold", wrong)
    gold = write(tmp_path / "gold.jsonl", lines)
    answer_all(shop.path, "accept", dict.fromkeys("abc", "annotator"), lambda name, *_: name != "b", gold=gold)
    (status,) = status_of(shop, capsys)
    rates = {annotator["name"]: annotator["gold"] for annotator in status["annotators"]}
    assert rates == {"a": {"value": 1, "n": 4}, "b": {"value": 0, "n": 4}, "c": {"value": 1, "n": 4}}


def test_two_runs_in_one_session_share_equal_images(tmp_path):
    a, b = make_shop(tmp_path / "a", 4, models=MODELS[:1]), make_shop(tmp_path / "b", 4, models=MODELS[1:], seed=9)
    right = a.right | b.right
    with RunDir.open(a.path) as one, RunDir.open(b.path) as two:
        session = open_session([one, two], load_protocol("accept"), repeats=0)
        with session.database:
            add_people(session.database, {"x": "annotator"}, "en")
            (me,) = session.database.annotators()
            session.queue.add(me.name, me.role)
            for item in session.queue.items:
                values = {key: {"overall": right[_sha(item, key)]} for key in session.keys(item)}
                session.answer(me, f"r-{item.item_id}", item.item_id, "answer", Answer(values), None)
        for opened, shop in ((one, a), (two, b)):
            found = load_annotations(a.path, opened, {}).consensus[OVERALL]
            rows = opened.store.candidates()
            assert {w: r.decision for w, r in found.items()} == {row.work_id: shop.right[row.image] for row in rows}


def test_annotations_are_merged_with_their_runs(tmp_path, capsys, monkeypatch):
    shops = [make_shop(tmp_path / model, 3, models=(model,), seed=i) for i, model in enumerate(MODELS)]
    for shop, rater in zip(shops, ("r1", "r2"), strict=True):
        imported(shop, capsys, tmp_path / f"{rater}.jsonl", labels(shop, rater))
    monkeypatch.setattr("local_bench.runs.merge.verify", lambda run: [])  # drawn by hand, not generated
    with AnnotationDatabase(shops[1].path / FILE) as database:  # of a release with another key
        database.set_meta("protocol:accept", database.meta("protocol:accept").replace('"key":"r"', '"key":"w"'))
    run(capsys, "merge", tmp_path / "all", *(shop.path for shop in shops))
    n = {rater: len(ratings[OVERALL]) for rater, ratings in people_of(tmp_path / "all").raters.items()}
    assert n == {rater: len(shop.images) for rater, shop in zip(("r1", "r2"), shops, strict=True)}
    with AnnotationDatabase(tmp_path / "all" / FILE) as database:
        assert [annotator.name for annotator in database.annotators()] == ["r1", "r2"]


def test_an_exported_sheet_has_no_formulas(shop, tmp_path, capsys):
    answer_all(shop.path, "accept", {"=cmd|x": "annotator"}, lambda *_: True)
    run(capsys, "annotate", "export", shop.path, "--out", tmp_path / "all.csv")
    rows = list(csv.DictReader((tmp_path / "all.csv").open(newline="")))
    assert {(row["annotator"], row["value"]) for row in rows} == {("'=cmd|x", "true")}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--protocol acept", "did you mean 'accept'"),
        ("--host 0.0.0.0 --port 0", "requires annotators with personal links"),
        ("--host 192.0.2.1", "cannot listen on 192.0.2.1"),
        ("--new", "name it with --protocol"),
        *(
            (f"--port 0 --base {base}", "give http:// or https://, the host")
            for base in ("annotate.lab.org", "https://a.org/rate", "ftp://a.org", "https://", "https://u@a.org", "//a")
        ),
        ("--port 0 --base https://a.org:999999", "such as https://annotate.lab.org"),
        ("--annotators nobody.yaml", "does not exist"),
        ("--protocol mine.yaml", "does not exist"),
        ("--gold none.jsonl", "does not exist"),
    ],
)
def test_wrong_input_is_an_error(shop, capsys, options, sentence):
    assert sentence in refused(capsys, shop.path, *options.split())


def test_commands_before_anyone_has_annotated(shop, tmp_path, capsys):
    for command in (("status", shop.path), ("ranking", shop.path), ("export", shop.path, "--out", tmp_path / "x.csv")):
        assert "this run has no annotations" in run(capsys, "annotate", *command, status=1)
    assert not (shop.path / FILE).exists()


@pytest.fixture
def serve(monkeypatch, capsys):
    """`annotate RUN… OPTIONS` whose server stops at once: what it prints, the links by name, and stderr."""
    monkeypatch.setattr("local_bench.annotation.serve.serve", lambda session, bound, address, ready: ready())

    def served(*arguments):
        assert main([*map(str, ("annotate", *arguments, "--port", "0", "--json"))]) == 0
        out, err = capsys.readouterr()
        printed = json.loads(out)
        return printed, {person["name"]: person["link"] for person in printed["annotators"]}, err

    return served


def raters(path, **roles):
    path.write_text(json.dumps({"annotators": [{"name": name, "role": role} for name, role in roles.items()]}))
    return path


def test_a_restart_continues_the_protocol_and_keeps_the_links(shop, tmp_path, capsys, serve):
    people = raters(tmp_path / "raters.yaml", r1="annotator", r2="annotator", boss="lead")
    first, links, _ = serve(shop.path, "--protocol", "pass-fail", "--annotators", people)
    assert (first["protocol"], None in links.values()) == ("pass-fail", False)
    assert serve(shop.path)[0]["protocol"] == "pass-fail"  # before the first answer too
    answer_all(shop.path, "pass-fail", {}, right_answers(shop))
    for more in ((), ("--protocol", "pass-fail"), ("--annotators", people)):
        again, links_again, err = serve(shop.path, *more)
        assert (again["protocol"], again["n_items"]) == ("pass-fail", first["n_items"])
        assert links_again == dict.fromkeys(("boss", "r1", "r2"))  # no new ones, and nobody was added
        assert "earlier links begin with http://127.0.0.1:" in err
    with AnnotationDatabase(shop.path / FILE) as database:
        assert all(database.annotator_of(link.rpartition("/")[2]).name == name for name, link in links.items())
    n = 2 * first["n_items"]
    assert refused(capsys, shop.path, "--protocol", "scores") == (
        f"local-bench: {shop.path} has {n} answers by protocol pass-fail: leave --protocol out to continue, or add "
        "--new to begin scores as well\n"
    )
    assert serve(shop.path, "--protocol", "scores", "--new")[0]["protocol"] == "scores"
    assert serve(shop.path)[0]["protocol"] == "scores"  # the one that was served last
    counts = {
        status["protocol"]: [sum(person["n_answers"] for person in status["annotators"]), status["n_items"]]
        for status in status_of(shop, capsys)
    }
    assert counts == {"pass-fail": [n, first["n_items"]], "scores": [0, 16]}
    assert serve(shop.path, "--protocol", "pass-fail")[0]["protocol"] == "pass-fail"  # has answers: without --new


def test_who_works_alone_gets_a_link_at_every_start(shop, tmp_path, capsys, serve):
    _, first, _ = serve(shop.path)
    imported(shop, capsys, tmp_path / "in.jsonl", labels(shop, "r1"))
    _, second, err = serve(shop.path)
    assert "earlier links" not in err  # they are replaced
    with AnnotationDatabase(shop.path / FILE) as database:
        assert [database.annotator_of(first[name].rpartition("/")[2]) for name in ("me", "lead")] == [None, None]
        assert database.annotator_of(second["me"].rpartition("/")[2]).name == "me"
    assert second["r1"] is None  # made elsewhere
    _, third, _ = serve(shop.path, "--annotators", raters(tmp_path / "raters.yaml", r1="annotator"))
    assert [name for name, link in third.items() if link] == ["r1"]
    assert not any(serve(shop.path)[1].values())  # r1 has one now: nobody's is replaced


def test_an_import_alone_is_continued_by_whoever_annotates(shop, tmp_path, capsys, serve):
    imported(shop, capsys, tmp_path / "in.jsonl", labels(shop, "r1"), "pass-fail")
    printed, links, _ = serve(shop.path)
    assert printed["protocol"] == "pass-fail"
    assert [name for name, link in links.items() if link] == ["lead", "me"]


def test_a_restart_keeps_the_sample_the_known_answers_and_the_repeats(shop, tmp_path, capsys, serve):
    """And an import does not change them either."""
    gold = write(tmp_path / "gold.jsonl", labels(shop, "x")[:5])
    sampled = [{"model": m, "task_id": t, "deliverable": i, "attempt": a} for m, t, i, a in list(shop.images)[:8]]
    questions = write(tmp_path / "ask.jsonl", [one | {"probability": 0.4, "overall": None} for one in sampled])
    one = ("--protocol", "pass-fail")

    def stored():
        with AnnotationDatabase(shop.path / FILE) as database:
            setting = json.loads(database.meta("session:pass-fail"))
            items = database.items()
        return setting, {i: (items[i].sampled, items[i].gold) for i in setting["items"]}

    serve(shop.path, *one, "--questions", questions, "--gold", gold, "--repeats", "0.25")
    before = stored()
    assert [bool(known) for _, known in before[1].values()].count(True) == 5
    assert [sampled[0][2] for sampled, _ in before[1].values()] == [0.4] * 8
    for change in (lambda: serve(shop.path), lambda: serve(shop.path, *one), lambda: imported(
        shop, capsys, tmp_path / "in.jsonl", labels(shop, "r1"), "pass-fail"
    )):  # fmt: skip
        change()
        assert stored() == before
    serve(shop.path, "--repeats", "0")
    assert (stored()[0]["repeats"], stored()[1]) == (0, before[1])
    assert serve(shop.path, "--questions", "all")[0]["n_items"] == len(shop.right)


def test_a_restart_needs_all_runs_of_the_session(tmp_path, capsys, serve):
    a, b = make_shop(tmp_path / "a", 4, models=MODELS[:1]), make_shop(tmp_path / "b", 4, models=MODELS[1:], seed=9)
    n = serve(a.path, b.path)[0]["n_items"]
    assert "of the images of 2 runs: give all of them" in refused(capsys, a.path, "--port", "0")
    assert f"give {a.path} first" in refused(capsys, b.path, a.path, "--port", "0")
    assert serve(a.path, b.path)[0]["n_items"] == n
    merge_annotations(tmp_path, [a.path, b.path])
    with AnnotationDatabase(tmp_path / FILE) as database:  # of a run that has the images of both
        assert json.loads(database.meta("session:accept"))["runs"] == 1


def test_a_protocol_that_a_release_changed_is_continued_as_it_was(shop, tmp_path, capsys, serve):
    answer_all(shop.path, "scores", {"x": "annotator"}, lambda *_: 3)
    with AnnotationDatabase(shop.path / FILE) as database:
        earlier = json.loads(database.meta("protocol:scores"))
        earlier["fields"][2]["text"]["en"] = "How consistent is it? (5 without either)"
        database.set_meta("protocol:scores", json.dumps(earlier))
    assert serve(shop.path)[0]["protocol"] == "scores"
    with AnnotationDatabase(shop.path / FILE) as database:
        assert json.loads(database.meta("protocol:scores")) == earlier
    assert "without --protocol" in refused(capsys, shop.path, "--protocol", "scores", "--port", "0")


def test_a_link_has_the_address_of_the_last_server(shop, tmp_path, capsys, serve):
    people = raters(tmp_path / "raters.yaml", r1="annotator")
    printed, links, _ = serve(shop.path, "--annotators", people, "--base", "https://Annotate.lab.org:443/")
    assert printed["url"] == "https://annotate.lab.org"
    assert links["r1"].startswith("https://annotate.lab.org/a/")
    assert run(capsys, "annotate", "link", shop.path, "r1").startswith("https://annotate.lab.org/a/")
    printed, _, err = serve(shop.path)
    assert "earlier links begin with https://annotate.lab.org" in err
    assert run(capsys, "annotate", "link", shop.path, "r1").startswith(printed["url"] + "/a/")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_links_of_a_server_on_all_addresses_open_elsewhere(shop, tmp_path, serve, host):
    if host == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    people = raters(tmp_path / "raters.yaml", r1="annotator")
    printed, links, err = serve(shop.path, "--annotators", people, "--host", host)
    name = urlsplit(printed["url"]).hostname
    assert name == socket.gethostname().lower() or not ip_address(name).is_unspecified
    assert links["r1"].startswith(printed["url"])
    assert "give it with --base" in err
    assert "without encryption" in err
    err = serve(shop.path, "--host", host, "--base", "https://annotate.lab.org")[2]
    assert "without encryption" not in err


def test_a_protocol_of_a_lab_and_one_that_changed(shop, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "local-bench" / "protocols"
    folder.mkdir(parents=True)
    text = (FOLDER / "accept.yaml").read_text().replace("id: accept", "id: mine")
    (folder / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    load_protocol.cache_clear()
    answer_all(shop.path, "mine", {"x": "annotator", "y": "annotator"}, lambda *_: True)
    (folder / "mine.yaml").write_text(text.replace("raters: 2", "raters: 3"))
    load_protocol.cache_clear()
    with RunDir.open(shop.path) as opened, pytest.raises(UserError, match="give the changed protocol another id"):
        open_session([opened], load_protocol("mine"))
    (folder / "mine.yaml").write_text(text.replace("key: r", "key: w").replace("version: 1", "version: 2"))
    load_protocol.cache_clear()
    with RunDir.open(shop.path) as opened, open_session([opened], load_protocol("mine")).database as database:
        assert len(database.answers()) == 32  # by other keys, and as valid as before
    (folder / "mine.yaml").write_text(text.replace("key: r", "key: z"))
    load_protocol.cache_clear()
    assert "the key z is used by the page" in refused(capsys, shop.path, "--protocol", "mine")


def test_an_import_says_what_was_new(shop, tmp_path, capsys):
    several = {task for _, task, deliverable, _ in shop.images if deliverable > 1}
    first = [line for line in labels(shop, "r1") if line["task_id"] not in several]
    path, n = tmp_path / "in.jsonl", len(first)
    assert imported(shop, capsys, path, first[: n // 2]) == f"{n // 2} new of {n // 2} answers; 0 were there already\n"
    assert imported(shop, capsys, path, first) == f"{n - n // 2} new of {n} answers; {n // 2} were there already\n"
    changed = [first[0] | {"overall": not first[0]["overall"]}, first[1] | {"overall": None}, *first[2:]]
    assert imported(shop, capsys, path, changed) == (
        f"0 new of {n - 1} answers; {n - 2} were there already; 1 differs from the annotator's stored answer, which is "
        "kept; 1 line lacks a rating and was left out\n"
    )
    counts = run(capsys, "annotate", "import", shop.path, path, "--protocol", "accept", "--json")
    assert counts == {"n_stored": 0, "n_before": n - 2, "n_different": 1, "n_unrated": 1, "n_later": 0}
    write(path, [line | {"brf": 3} for line in first[:2]])
    assert main(["annotate", "import", str(shop.path), str(path), "--protocol", "accept"]) == 0
    assert "brf of 2 lines is no answer by protocol accept and was left out" in capsys.readouterr().err
    of_run, of_file = (people_of(file, shop.path).raters["r1"][OVERALL] for file in (shop.path, write(path, first)))
    assert of_run == of_file


@pytest.mark.parametrize(("accepted", "rejected"), [(1, 0), (1.0, False), (True, 0)])
def test_a_decision_may_be_a_number(shop, tmp_path, capsys, accepted, rejected):
    plain = labels(shop, "r1", ["print-02"])
    numbers = [line | {"overall": accepted if line["overall"] else rejected} for line in plain]
    of_plain, of_numbers = (people_of(write(tmp_path / "l.jsonl", lines), shop.path) for lines in (plain, numbers))
    assert of_plain == of_numbers
    assert imported(shop, capsys, tmp_path / "n.jsonl", numbers).startswith("16 new of 16 answers; 0 were there")
    assert imported(shop, capsys, tmp_path / "p.jsonl", plain).startswith("0 new of 16 answers; 16 were there")


def test_lines_that_no_annotator_wrote_are_refused(shop, tmp_path, capsys):
    (line, *_), path = labels(shop, "r1"), tmp_path / "in.jsonl"
    for change, sentence in (
        ({"rater": 7}, "line 1: rater: input should be a valid string, not 7 (put it in quotes)"),
        ({"rater": "r" * 101}, "line 1: rater: string should have at most 100 characters"),
        ({"rater": "r\x851"}, "line 1: rater: write the name without control characters"),
        ({"task_id": ["a"]}, "line 1: task_id: input should be a valid string"),
        ({"task_id": "a"}, "line 1: the run has no task 'a': correct or remove the line"),
        ({"deliverable": 1.0}, "line 1: deliverable: input should be a valid integer, not 1.0"),
        ({"overal": True}, "line 1: there is no key 'overal'; did you mean 'overall'?"),
        ({}, "line 2: 'r1' rates this image on an earlier line too: remove one"),
    ):
        assert sentence in imported(shop, capsys, path, [line | change] * 2, status=2)
    what_to_write = "it is a decision: write true or 1 (accepted), false or 0 (rejected), or null"
    for value, shown in ((2, "2"), (0.5, "0.5"), ("yes", "'yes'"), (-1, "-1"), ([], "")):
        said = imported(shop, capsys, path, [line | {"overall": value}], status=2)
        assert f"line 1: overall, {shown}" in said
        assert what_to_write in said
        said = run(capsys, "settle", shop.path, "--people", path, status=2)
        assert ("line 1" in said, what_to_write in said) == (True, True)
    protocol = load_protocol("scores")
    scored = {name: value for name, value in line.items() if name != "overall"}
    scored |= {field.name: 4 for field in protocol.fields} | {protocol.fields[0].name: 4.5}
    said = imported(shop, capsys, path, [scored], "scores", status=2)
    assert f"line 1: {protocol.fields[0].name} is 4.5, but protocol scores has " in said
    assert not (shop.path / FILE).exists()


def lines_of(path, out, capsys):
    """The run's annotations, sorted."""
    run(capsys, "annotate", "export", path, "--out", out)
    return sorted(out.read_text().splitlines())


@pytest.fixture
def answered(shop, tmp_path, capsys):
    """By two annotators, one of whom cannot judge two sets, an adjudicator and a lead."""
    unclear = [line | {"overall": None} for line in labels(shop, "r2") if line["task_id"] == "print-01"]
    imported(shop, capsys, tmp_path / "unclear.jsonl", unclear)
    roles = {"r1": "annotator", "r2": "annotator", "r3": "adjudicator", "boss": "lead"}
    answer_all(shop.path, "accept", roles, lambda name, item, *_: name != "r2" or item.task_id != "print-04")
    return shop


def test_an_import_of_an_export_gives_the_same_annotations(answered, tmp_path, capsys):
    """In the run itself nothing is new; a copy has the same decisions, agreement and state."""
    path, out, names = answered.path, tmp_path / "out.jsonl", ("n_complete", "n_disputed", "n_adjudicated", "fields")
    exported = lines_of(path, out, capsys)
    assert sum('"adjudication": true' in line for line in exported) >= 2 <= sum("null" in line for line in exported)
    before = (path / FILE).read_bytes(), status_of(answered, capsys)
    assert run(capsys, "annotate", "import", path, out, "--protocol", "accept").startswith("0 new of 36 answers; 36 ")
    assert ((path / FILE).read_bytes(), status_of(answered, capsys)) == before
    copy = shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns(f"{FILE}*"))
    assert run(capsys, "annotate", "import", copy, out, "--protocol", "accept").startswith("36 new of 36 answers; 0 ")
    assert people_of(copy) == people_of(path)
    assert lines_of(copy, tmp_path / "again.jsonl", capsys) == exported
    (of_copy,), (status,) = run(capsys, "annotate", "status", copy, "--json")["protocols"], before[1]
    assert [of_copy[name] for name in names] == [status[name] for name in names]
    of_person = [(who["name"], who["role"], who["n_answers"], who["n_cannot_tell"]) for who in of_copy["annotators"]]
    assert of_person == [("r1", "annotator", 16, 0), ("r2", "annotator", 16, 2), ("r3", "adjudicator", 4, 0)]


def test_an_import_that_the_run_cannot_keep_changes_nothing(answered, tmp_path, capsys):
    """Neither answers nor roles; whatever fails, and wherever in the file."""
    path, stored = tmp_path / "in.jsonl", (answered.path / FILE).read_bytes()
    new, several = labels(answered, "r9"), next(task for _, task, deliverable, _ in answered.images if deliverable > 1)
    undecided = [line | {"overall": None} if line["deliverable"] == 2 else line for line in new]
    for lines, sentence in (
        ([*new, new[0] | {"rater": "boss"}], "'boss' is the run's lead and gives no such answers: use another name"),
        ([*new, *labels(answered, "r3")], "'r3' is the run's adjudicator and gives no such answers"),
        ([line | {"adjudication": True} for line in new], "'r3' adjudicates this image too: remove one"),
        ([line | {"probability": 0.5} for line in new], "the probability is 0.5, but the run's annotation by protocol"),
        (undecided, f"r9 rates only some of the images of {several!r}"),
    ):
        assert sentence in imported(answered, capsys, path, lines, status=2)
        assert (answered.path / FILE).read_bytes() == stored
    with AnnotationDatabase(answered.path / FILE) as database:
        fifth = "BEFORE INSERT ON answers WHEN (SELECT count(*) FROM answers) = 40 BEGIN SELECT RAISE(ABORT, ''); END"
        database._db.execute(f"CREATE TRIGGER fails {fifth}")
        assert main(["annotate", "import", str(answered.path), str(write(path, new)), "--protocol", "accept"]) == 1
        assert ("r9" in {annotator.name for annotator in database.annotators()}, len(database.answers())) == (False, 36)


def test_an_import_has_what_two_rounds_asked_about_a_set(shop, tmp_path, capsys):
    """Of which an annotator could decide one image only."""
    (model, task, *_), *_ = [key for key in shop.images if key[2] == 2]
    of_image = {"model": model, "task_id": task, "attempt": 1, "rater": "r1"}
    rounds = ((1, 1.0, None), (2, 0.5, True))
    lines = [of_image | {"deliverable": i, "probability": p, "overall": said} for i, p, said in rounds]
    assert imported(shop, capsys, tmp_path / "in.jsonl", lines) == "2 new of 2 answers; 0 were there already\n"
    assert [json.loads(line) for line in lines_of(shop.path, tmp_path / "out.jsonl", capsys)] == lines


def test_an_import_of_rounds_keeps_what_was_adjudicated(shop, tmp_path, capsys):
    """The annotators disagree about the image of the first round, and not about the other one of its set."""
    (model, task, *_), *_ = [key for key in shop.images if key[2] == 2]
    line = {"model": model, "task_id": task, "overall": None}
    first, second = line | {"deliverable": 1, "probability": 0.5}, line | {"deliverable": 2, "probability": 0.5}
    roles = {"r1": "annotator", "r2": "annotator", "r3": "adjudicator"}
    answer_all(shop.path, "accept", roles, lambda name, *_: name != "r2", questions=write(tmp_path / "1", [first]))
    done = first | {"overall": True, "probability": 1.0}
    answer_all(shop.path, "accept", {}, lambda *_: True, questions=write(tmp_path / "2", [done, second]))
    lines = lines_of(shop.path, tmp_path / "out.jsonl", capsys)
    copy = shutil.copytree(shop.path, tmp_path / "copy", ignore=shutil.ignore_patterns(f"{FILE}*"))
    run(capsys, "annotate", "import", copy, tmp_path / "out.jsonl", "--protocol", "accept")
    (of_copy,) = run(capsys, "annotate", "status", copy, "--json")["protocols"]
    assert [of_copy[name] for name in ("n_items", "n_complete", "n_disputed", "n_adjudicated")] == [2, 2, 0, 1]
    assert lines_of(copy, tmp_path / "again.jsonl", capsys) == lines
    assert people_of(copy) == people_of(shop.path)


def test_an_import_leaves_out_the_attempts_that_the_protocol_does_not_show(tmp_path, capsys):
    """A complete file also has the second attempts; a task has several images."""
    two = make_shop(tmp_path / "two", 4, attempts=2)
    lines = labels(two, "r1")
    first = [line for line in lines if line["attempt"] == 1]
    assert imported(two, capsys, tmp_path / "in.jsonl", lines) == (
        f"8 new of 8 answers; 0 were there already; {len(lines) - len(first)} lines are about later attempts, which "
        "the protocol does not show, and were left out\n"
    )
    assert len(people_of(two.path).raters["r1"][OVERALL]) == len(first) > 8
