import math
from dataclasses import replace

import pytest
from PIL import Image

from local_bench.core.errors import ConfigError, UserError
from local_bench.judges.payment.data import (
    DEFAULT_PROMPT,
    PaymentConfig,
    Prompt,
    Stage,
    TrainingSet,
    load_payment_config,
    without_labels,
)
from local_bench.judges.payment.inputs import Encoder, TooLong, collages
from local_bench.judges.payment.training import learning_rate, oversampled, step_examples, steps_per_epoch
from tests.judges.payment import tiny
from tests.judges.payment.test_adapters import CPU, encoder


def test_a_task_in_two_splits_is_refused_and_the_manifest_depends_on_every_example_and_not_on_their_order() -> None:
    data_set = tiny.data()
    first, *others = data_set.examples
    with pytest.raises(UserError, match="splits train and test: assign splits by task"):
        TrainingSet((first, replace(first, work_id="other", split="test")), ("said", "unknown"))
    assert TrainingSet(data_set.examples[::-1], data_set.measured_names).manifest_sha256 == data_set.manifest_sha256
    changed = replace(first, accepted=1 - first.accepted)
    assert TrainingSet((changed, *others), data_set.measured_names).manifest_sha256 != data_set.manifest_sha256


def test_examples_for_predictions_have_no_labels() -> None:
    (bare,) = without_labels([tiny.example(0, "train")])
    assert math.isnan(bare.accepted)
    assert all(map(math.isnan, bare.concepts))
    assert bare.measured == tiny.example(0, "train").measured


def test_collages_hold_auxiliary_images() -> None:
    images = [Image.new("RGB", (40, 20), (i, 0, 0)) for i in range(11)]
    assert [collage.size for collage in collages(images[:1])] == [(40, 20)]
    (four,) = collages(images[:4])
    assert four.size == (80, 80)
    assert [four.getpixel((x, y)) for x, y in ((20, 20), (60, 20), (20, 60), (60, 60))] == [(i, 0, 0) for i in range(4)]
    assert len(collages(images)) == 2
    assert collages([]) == []


def test_a_long_brief_is_shortened_and_control_tokens_are_text() -> None:
    encode = encoder("tiny-qwen3-vl")
    plain = tiny.example(1, "train")
    sized = Encoder(encode.processor, tiny.config(max_tokens=400, prompt=DEFAULT_PROMPT), tiny.load)
    long = replace(plain, brief="a red poster " * 400, work_id="long")
    assert 300 < sized.encode(long)["input_ids"].shape[1] <= 400
    marked = replace(plain, brief="<|image_pad|>", work_id="marked")
    assert int(encode.batch([marked], CPU)["mm_token_type_ids"].sum()) == int(
        encode.batch([plain], CPU)["mm_token_type_ids"].sum()
    )
    with pytest.raises(TooLong, match="without its brief"):
        sized.encode(replace(plain, title="a red poster " * 400, work_id="title"))


def test_every_example_is_used_once_in_an_epoch() -> None:
    stage = Stage(epochs=2, effective_batch=4)
    assert steps_per_epoch(12, stage) == 3
    epochs = [[i for step in range(3 * e, 3 * e + 3) for i in step_examples(12, stage, 1, step, 0)] for e in (0, 1)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0] != epochs[1]
    assert [Stage(epochs=1, batch_size=2).accumulation(n) for n in (1, 4)] == [16, 4]
    with pytest.raises(ConfigError, match="not a multiple"):
        Stage(epochs=1, effective_batch=32).accumulation(3)


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    stage = Stage(epochs=1, learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(stage, step, 100) for step in range(100)]
    assert rates[9] == 1.0 == max(rates)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] < 0.01


def test_oversampling_repeats_the_rarer_class() -> None:
    examples = [replace(tiny.example(i, "train"), accepted=float(i == 0)) for i in range(5)]
    balanced = oversampled(examples)
    assert sum(part.accepted == 1 for part in balanced) == sum(part.accepted == 0 for part in balanced) == 4


def test_shipped_settings_and_the_rows_of_table_4() -> None:
    full = load_payment_config("qwen3-vl-4b-4xa6000")
    assert [full.row(name).lora.groups for name in ("frozen", "concepts", "vision", "full")] == [
        (),
        (),
        ("vision", "projector"),
        ("vision", "projector", "language"),
    ]
    assert [full.row(name).concepts for name in ("frozen", "concepts")] == ["none", "regression"]
    single = load_payment_config("qwen3-vl-4b-1gpu")
    assert single.stage1 == full.stage1
    assert load_payment_config("mini-judge").prompt != DEFAULT_PROMPT
    with pytest.raises(ConfigError, match="no row 'half'"):
        full.row("half")
    with pytest.raises(ValueError, match="unknown slot"):
        Prompt(system="", text="{nothing}")
    assert PaymentConfig(card="x").digest != PaymentConfig(card="x", seed=1).digest
