"""The estimates of `plan`, also for GPUs that this machine does not have."""

import json

import pytest

from local_bench.cli.main import main
from local_bench.core.yamlfile import check
from local_bench.models import gpus
from local_bench.models.cards import card
from local_bench.runs import plan as plans
from local_bench.runs.config import RunConfig
from local_bench.runs.estimate import ANSWER_TOKENS, DECODE_FACTOR, TEXT_TOKENS, estimate
from local_bench.runs.plan import make_plan
from tests.suites.benchmarks import layouts

KLEIN = {"card": "flux2-klein-4b", "load": "random"}


def planned(model, gpu=None, **sections):
    """The plan of the studio's orders, and its model."""
    config = check({"name": "t", "suite": {"name": "studio"}, "models": [model]} | sections, RunConfig, "here")
    plan = estimate(config, make_plan(config), gpu)
    return plan, plan["models"][0]


def test_figures_are_consistent():
    plan, m = planned(KLEIN, gpu="h100")
    assert (plan["gpu"], plan["capacity_gb"]) == ("h100", 85)
    assert (m["n_images"], m["n_batches"], m["batch_size"], m["load"]) == (20, 20, 1, "random")
    assert m["pflop_per_image"] == pytest.approx(0.154, rel=0.01)
    assert m["floor_s_per_image"] == pytest.approx(m["pflop_per_image"] * 1000 / 790)
    assert m["floor_s_per_image"] < m["planned_s_per_image"] < 2.5 * m["floor_s_per_image"]
    assert m["gpu_hours"] == pytest.approx(20 * m["planned_s_per_image"] / 3600)
    assert m["cost_usd"] == pytest.approx(m["gpu_hours"] * 2.95, rel=1e-3)
    assert m["wh"] == pytest.approx(20 * m["wh_per_image"])
    assert m["wh_per_image"] == pytest.approx(700 * m["planned_s_per_image"] / 3600)
    assert m["vram_gb"] == max(phase["total_gb"] for phase in m["phases"].values())
    assert all(phase["fits"] for phase in m["phases"].values())
    assert m["refused"] is None
    assert plan["disk_gb"] == {"images": pytest.approx(20 * 3 * 1024 * 1024 / 1e9), "encodings": 20.0}
    json.dumps(plan, allow_nan=False)


def test_a_slower_gpu_takes_longer_and_compiling_takes_less_time():
    def seconds(gpu, **engine):
        return planned(KLEIN, gpu, engine=engine)[1]["planned_s_per_image"]

    assert seconds("a6000") > seconds("a100-80") > seconds("h200")
    assert seconds("h200", compile=False) > seconds("h200", compile=True) == seconds("h200")


def test_streamed_weights_take_transfer_time():
    _, resident = planned(KLEIN, "a100-80")
    _, offloaded = planned(KLEIN, "a100-80", engine={"offload": "always"})
    assert (resident["offload"], offloaded["offload"]) == ([], ["encode", "denoise"])
    assert offloaded["planned_s_per_image"] >= 4 * 7.75 / 25 > resident["planned_s_per_image"]
    assert offloaded["vram_gb"] < resident["vram_gb"]


def test_without_a_known_gpu_no_hours_are_estimated():
    plan, m = planned({"card": "tiny-flux", "attempts": 2}, engine={"device": "cpu"})
    assert (plan["device"], plan["gpu"]) == ("cpu", None)
    assert (m["n_images"], m["batch_size"], m["n_batches"]) == (40, 4, 10)
    unknown = ("gpu_hours", "cost_usd", "wh", "floor_s_per_image", "planned_s_per_image")
    assert {m[name] for name in unknown} == {None}
    assert m["vram_gb"] > 0
    assert "its speed is unknown" in plan["basis"]


def test_operations_that_a_card_does_not_state_are_unknown(monkeypatch):
    sentence = "its time is unknown, and so is the whole run's: give `pflop_per_image` in its card"
    config = RunConfig(name="t", suite={"name": "studio"}, models=[{"card": "sd-1.5"}])
    assert sentence not in estimate(config, make_plan(config, files=False), "a6000")["models"][0]["sentences"]
    monkeypatch.setattr(plans, "card", lambda *of: card(*of).model_copy(update={"pflop_per_image": None}))
    plan = estimate(config, make_plan(config, files=False), "a6000")
    (m,) = plan["models"]
    assert (m["pflop_per_image"], m["planned_s_per_image"], plan["budget"]["gpu_hours"]) == (None, None, None)
    assert sentence in m["sentences"]


def test_prompts_of_different_lengths_are_in_different_batches():
    _, m = planned({"card": "tiny-qwen-image", "attempts": 2}, engine={"device": "cpu"})
    assert (m["n_images"], m["batch_size"], m["n_batches"]) == (40, 2, 20)


def test_the_gpu_of_the_price_is_used_for_the_plan():
    for gpu, expected in ((None, "rtx4090"), ("h100", "h100")):
        assert planned(KLEIN, gpu, settlement={"gpu": "rtx4090"})[0]["gpu"] == expected


def test_a_model_that_does_not_fit_is_reported_and_the_rest_is_estimated(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(json.dumps({"name": "c", "models": [KLEIN | {"height": 4096, "width": 4096}]}))
    arguments = ["plan", str(tmp_path / "c.yaml"), "--gpu"]
    assert main([*arguments, "4090", "--json"]) == 0
    (m,) = json.loads(capsys.readouterr().out)["models"]
    assert "to decode it needs" in m["refused"]
    assert m["gpu_hours"] is m["cost_usd"] is None
    assert main([*arguments, "4090"]) == 0
    assert "flux2-klein-4b: refused: to decode it needs" in capsys.readouterr().out
    assert main([*arguments, "h300"]) == 2
    out, err = capsys.readouterr()
    assert (out, "did you mean 'h" in err) == ("", True)


def test_imported_images_take_no_gpu(tmp_path):
    (tmp_path / "m.jsonl").write_text("")
    _, m = planned({"card": "imported", "name": "theirs", "imported": {"images": str(tmp_path / "m.jsonl")}}, "h100")
    assert (m["load"], m["n_images"], m["cost_usd"]) == ("imported", 0, 0.0)


def test_neither_models_nor_judges_are_loaded_for_tasks_without_their_images(tmp_path):
    path = layouts.hype(tmp_path)
    sections = {"suite": {"name": "hype-edit-1", "path": str(path)}, "judge": {"card": "tiny-qwen3-vl"}}
    sections |= {"panel": [{"card": "mini-judge"}]}
    before, _ = planned({"card": "flux1-kontext-dev", "load": "random"}, "h100", **sections)
    assert before["budget"]["judge_start_s"] > 2 * 120
    for image in [file for file in path.parent.rglob("*") if file.suffix in (".png", ".webp", ".jpg")]:
        image.unlink()
    after, m = planned({"card": "flux1-kontext-dev", "load": "random"}, "h100", **sections)
    assert (m["n_images"], after["judge"]["n_questions"]) == (0, 0)
    assert (after["budget"]["load_s"], after["budget"]["judge_start_s"], after["budget"]["wall_hours"]) == (0, 0, 0)


@pytest.mark.parametrize(("n_gpus", "n_used"), [(1, 1), (4, 4), (6, 4), (8, 8)])
def test_the_budget_is_that_of_the_cards(n_gpus, n_used):
    """By hand: models and judges are read once per node, and a replica of the judge needs 4 GPUs, or all of fewer."""
    config = {"name": "t", "suite": {"name": "studio"}, "models": [{"card": "flux1-dev"}, KLEIN], "metrics": []}
    config = check(config | {"judge": {"card": "qwen25-vl-72b"}}, RunConfig, "here")
    plan = estimate(config, make_plan(config, files=False), "a100-80", n_gpus, 2)
    budget, models = plan["budget"], plan["models"]
    encoders, transformer_and_vae = (models[0]["phases"][name]["weights_gb"] for name in ("encode", "denoise"))
    klein = sum(models[1]["phases"][name]["weights_gb"] for name in ("encode", "denoise"))
    assert (encoders, transformer_and_vae) == (pytest.approx(9.77, abs=0.01), pytest.approx(23.97, abs=0.01))
    load_s = encoders + transformer_and_vae + klein
    assert budget["load_s"] == pytest.approx(load_s, rel=0.02)  # klein encodes images too, with its VAE
    assert budget["judge_start_s"] == pytest.approx(120 + 2 * 73.4)
    generation_h = sum(model["gpu_hours"] for model in models)
    wall_s = 3600 * (generation_h / n_gpus + budget["judge_gpu_hours"] / n_used) / 2
    wall_s += budget["load_s"] + 120 + 2 * 73.4 + 2 * 9.6
    assert budget["wall_hours"] == pytest.approx(wall_s / 3600)
    assert budget["gpu_hours"] == pytest.approx(budget["wall_hours"] * 2 * n_gpus)
    assert budget["cost_usd"] == pytest.approx(1.79 * budget["gpu_hours"], rel=1e-5)


def test_questions_are_counted_for_the_images_that_are_planned(tmp_path):
    sections = {"suite": {"name": "idea-bench", "path": str(layouts.idea(tmp_path))}}
    sections |= {"judge": {"card": "tiny-qwen3-vl"}, "engine": {"device": "cpu"}}
    plan, m = planned({"card": "tiny-flux", "attempts": 2}, **sections)
    assert m["n_images"] == 2  # one of three cases is text to one image
    assert plan["judge"]["n_questions"] == 2 * 6 * 3  # attempts, questions, repeats


@pytest.mark.parametrize(
    ("suite", "judge", "tokens"),
    [
        ("hype-edit-1", {}, 4 * 1024),  # the sources of two edits, and the results
        ("hype-edit-1", {"max_pixels": 2**22}, 4 * 4096),
        ("hype-edit-1", {"source_max_pixels": 2**22}, 4 * 4096),
        ("ice-bench", {"max_pixels": 2**22}, 2 * 1024),  # the rubric's own limit
        ("ice-bench", {"source_max_pixels": 2**22}, 2 * 4096),
    ],
)
def test_images_have_the_tokens_of_the_pixels_that_the_judge_gets(tmp_path, suite, judge, tokens):
    layout = {"hype-edit-1": layouts.hype, "ice-bench": layouts.ice}[suite]
    config = {
        "name": "t",
        "suite": {"name": suite, "path": str(layout(tmp_path))},
        "judge": {"card": "qwen3-vl-8b"} | judge,
    }
    config = check(config | {"models": [{"card": "tiny-flux-kontext"}]}, RunConfig, "here")
    plan = estimate(config, make_plan(config, files=False), "h100")
    texts = plan["judge"]["n_questions"] * (TEXT_TOKENS + DECODE_FACTOR * ANSWER_TOKENS)
    flop = 3600 * plan["budget"]["judge_gpu_hours"] * gpus.gpu("h100").tflops(compiled=False) * 1e12
    assert flop / (2e9 * card("qwen3-vl-8b", "judge").parameters_b) - texts == pytest.approx(tokens)


def test_a_panel_has_a_line_per_judge_and_says_which_judge_does_not_fit(tmp_path, capsys):
    cards = ("qwen3-vl-8b", "qwen25-vl-72b")
    server = {"card": "qwen3-vl-8b", "name": "far", "base_url": "http://127.0.0.1:1/v1"}
    config = {"name": "c", "models": [KLEIN], "judge": {"card": cards[0]}, "panel": [{"card": cards[1]}, server]}
    (tmp_path / "c.yaml").write_text(json.dumps(config))

    def shown(*arguments):
        assert main(["plan", str(tmp_path / "c.yaml"), *arguments]) == 0
        return capsys.readouterr().out

    text, plan = shown("--gpu", "h100"), json.loads(shown("--gpu", "h100", "--json"))
    n = plan["judge"]["n_questions"] // 3
    lines = [f"qwen3-vl-8b, {n} questions, 22 GB", f"qwen25-vl-72b, {n} questions, 163 GB on 4 GPUs of 80 GB"]
    for line in (*lines, f"far, {n} questions, on an external server"):
        assert f"\njudge: {line}\n" in text
    small = (
        "qwen25-vl-72b: it needs 4 GPUs of 80 GB on a node, and the plan has 1 NVIDIA H100 80 GB, where it takes 163 GB"
    )
    assert f"{small} of each: plan with --gpus 4, or choose a smaller judge" in text
    keys = ("name", "n_questions", "vram_gb", "tensor_parallel_size")
    expected = [("qwen3-vl-8b", n, 22, 1), ("qwen25-vl-72b", n, 163, 4), ("far", n, None, None)]
    assert [tuple(judge[key] for key in keys) for judge in plan["judges"]] == expected
    assert [len(judge["sentences"]) for judge in plan["judges"]] == [0, 1, 0]
    assert "needs" not in shown("--gpu", "h100", "--gpus", "4") + shown("--gpu", "h200", "--gpus", "2")
    assert "takes 40.8 GB of each: plan for larger GPUs" in shown("--gpu", "4090", "--gpus", "4")
    alone = [shown("--gpu", "h100", "--json", "--set", f"judge.card={name}", "--set", "panel=[]") for name in cards]
    alone = [json.loads(text)["budget"]["judge_gpu_hours"] for text in alone]
    assert plan["budget"]["judge_gpu_hours"] == pytest.approx(sum(alone))
