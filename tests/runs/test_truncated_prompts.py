"""A note about truncated prompts names the encoders, and those that read everything."""

import pytest

from local_bench.cli.main import main
from tests.orders import order, write_orders

MODEL = "{card: tiny-flux, height: 64, width: 64, num_inference_steps: 1, batch_size: 1}"


@pytest.mark.parametrize(
    ("n_words", "told"),
    [
        (0, None),
        (5, "prompts truncated: 1 of 2 by clip; t5 read all of them whole"),
        (120, "prompts truncated: 1 of 2 by clip, 1 of 2 by t5"),
    ],
)
def test_the_encoder_that_truncates_is_named(tmp_path, monkeypatch, capsys, n_words, told):
    monkeypatch.chdir(tmp_path)
    briefs = {"short": "A red boot.", "long": "A red mug. " + "boot " * n_words}
    write_orders(tmp_path / "orders.jsonl", (order(name, title="Card", brief=brief) for name, brief in briefs.items()))
    config = "name: t\nsuite: {name: servimage, path: orders.jsonl}\nmetrics: []\nengine: {device: cpu}\n"
    (tmp_path / "run.yaml").write_text(f"{config}models: [{MODEL}]\n")
    assert main(["generate", "run.yaml", "--run-dir", "run"]) == 0
    err = capsys.readouterr().err
    assert ("prompts truncated" in err) == (told is not None)
    assert told is None or told in err
