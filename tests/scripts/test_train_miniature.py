import numpy as np
import torch

from examples.miniature import data, judge_cases
from examples.miniature.compare import chosen
from examples.miniature.muon import orthogonal
from examples.miniature.packing import Asked, packed
from examples.miniature.printshop.damage import KINDS
from examples.miniature.printshop.sampling import held_out, render
from examples.miniature.printshop.wording import vocabulary
from examples.miniature.vocabulary import clip_tokenizer, learn, t5_tokenizer
from local_bench.suites.printshop.phrases import read_caption


def _question(prompt: list[int], answer: int) -> Asked:
    return Asked(tuple(prompt), (answer,), (1.0,), "any")


def test_questions_packed_in_a_row_are_independent():
    questions = [_question([1, 2, 3, 4], 9), _question([1, 2, 3, 5, 6], 8), _question([1, 7], 9)]
    row = packed(questions)
    assert len(row.ids) == 10  # 1 2 3 once, then 4 9, 5 6 8, 7 9
    found = set()
    for at, _ in row.kinds:
        path = row.sees[at].nonzero()[0]
        assert row.depths[path].tolist() == list(range(len(path)))
        found.add((tuple(row.ids[path].tolist()), int(row.labels[at])))
    assert found == {(questions.prompt, questions.answer[0]) for questions in questions}


def test_of_questions_with_one_prompt_the_first_is_packed():
    row = packed([_question([1, 2], 5), _question([1, 2], 6)])
    assert row.labels[row.labels >= 0].tolist() == [5]


def test_every_word_is_one_token_of_t5_and_every_latin_word_one_of_clip(tmp_path):
    t5_tokenizer().save_pretrained(tmp_path / "t5")
    clip_tokenizer().save_pretrained(tmp_path / "clip")
    t5 = type(t5_tokenizer()).from_pretrained(tmp_path / "t5")
    clip = type(clip_tokenizer()).from_pretrained(tmp_path / "clip")
    for word in vocabulary():
        pieces = [piece for piece in t5.tokenize(word) if piece != "▁"]
        assert len(pieces) == 1, (word, pieces)
        if word.isascii():
            assert len(clip.tokenize(word)) == 1, (word, clip.tokenize(word))


def test_merges_complete_words_and_have_a_fixed_order():
    words = [tuple("ring"), tuple("bring"), tuple("rinse")]
    merges = learn(words)
    assert merges == learn(reversed(words))
    assert {"ring", "bring", "rinse"} <= {"".join(pair) for pair in merges}


def test_held_out_scenes_are_not_trained_on_and_spans_are_of_figures():
    rng = np.random.default_rng(5)
    for _ in range(300):
        scene = data.train_scene(rng, 0.8)
        assert not held_out(scene)
        worded = data.worded_scene(scene, rng, frames=False)
        assert read_caption(worded.text) == scene
        for start, end, figure in worded.spans:
            others = {f.shape for f in scene.figures} - {figure.shape}
            assert not any(shape in worded.text[start:end] for shape in others)
        edit = data.train_edit(rng)
        assert not held_out(edit.source) and not held_out(edit.target)  # noqa: PT018


def test_batches_depend_on_seed_and_number_only():
    first, again, other = (data.images(3, number, 4)[1] for number in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_claims_for_the_judge_are_balanced():
    rng = np.random.default_rng(6)
    answers = []
    for _ in range(60):
        case = judge_cases.one_image(judge_cases.drawn_look(rng, lambda pixels: pixels), rng)
        answers += [answer["met"] for question, answer in case.asked if question.rubric == "brf"]
    assert 0.4 < np.mean(answers) < 0.62


def test_damage_lowers_the_clarity_label():
    rng = np.random.default_rng(7)
    made = judge_cases.generated_look(render(data.train_scene(rng), rng))
    kinds = set()
    for _ in range(40):
        worn = judge_cases.damaged(made, rng)
        kinds.add(worn.kind)
        assert (worn.pixels != made.pixels).any()
        (question, answer), *_ = judge_cases.one_image(worn, rng).asked
        assert question.rubric == "veq_technical"
        assert answer["clarity"] == 5 - worn.strength
        assert answer["realism"] <= 6 - worn.strength
    assert kinds == set(KINDS)


def test_training_cases_follow_the_shares():
    rng = np.random.default_rng(8)
    found = [chosen(rng, {"often": 0.7, "seldom": 0.3}) for _ in range(400)]
    assert 0.6 < found.count("often") / len(found) < 0.8
    assert set(found) == {"often", "seldom"}


def test_muons_update_is_nearly_orthogonal():
    torch.manual_seed(0)
    for shape in ((1, 24, 8), (1, 8, 24)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert 0.5 < values.min() < values.max() < 1.4
