import pytest

from local_bench.core.errors import ConfigError
from local_bench.core.paths import configs_dir
from local_bench.runs.config import dump_config, load_config

GOOD = "name: x\nmodels:\n  - {card: tiny-flux}\n"


def load(tmp_path, text, *settings):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_config(path, settings)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD + "sead: 1\n", "line 4: there is no key 'sead'; did you mean 'seed'?"),
        (GOOD + "judge:\n  in_fligth: 3\n", "line 5: there is no key 'judge.in_fligth'; did you mean 'in_flight'?"),
        (
            "name: x\nmodels:\n  - {card: a, hight: 3}\n",
            "line 3: there is no key 'models.0.hight'; did you mean 'height'?",
        ),
        ("name: x\nmodels:\n  - {card: a, height: 100}\n", "multiple of 16, not 100"),
        ("name: ../x\nmodels:\n  - {card: a}\n", "line 1: name: use letters"),
        ("name: x\nmodels: []\n", "line 2: models"),
        ("name: x\nmodels:\n  - {card: a}\n  - {card: a}\n", "two models are called 'a'"),
        (GOOD + "acceptance: {brf: .nan}\n", "acceptance.brf"),
        (GOOD + "settlement: {usd_per_hour: '-1'}\n", "usd_per_hour must be an amount"),
        (GOOD + "settlement: {usd_per_hour: much}\n", "usd_per_hour must be an amount"),
    ],
)
def test_a_fault_names_its_line_and_the_nearest_right_key(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)


def test_settings_reach_into_lists_and_make_what_is_missing(tmp_path):
    config = load(tmp_path, GOOD, "models.0.height=64", "judge.in_flight=3", "suite.path=a.jsonl")
    assert (config.models[0].height, config.judge.in_flight, config.suite.path) == (64, 3, "a.jsonl")


@pytest.mark.parametrize(
    "setting", ["seed", "=1", "models.7.height=64", "models.x.height=1", "name.sub=1", "seed=[", "no.such=1"]
)
def test_a_setting_that_cannot_be_is_one_sentence(tmp_path, setting):
    with pytest.raises(ConfigError):
        load(tmp_path, GOOD, setting)


def test_what_is_written_down_is_whole_portable_and_reads_back(tmp_path):
    config = load(tmp_path, GOOD, "suite.path=/data/secret/tasks.jsonl")
    text = dump_config(config)
    assert "/data" not in text
    assert "request_timeout_s: 300.0" in text
    (tmp_path / "again.yaml").write_text(text)
    assert dump_config(load_config(tmp_path / "again.yaml")) == text


@pytest.mark.parametrize("path", sorted((configs_dir() / "runs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_config_loads_and_is_named_for_its_file(path):
    from local_bench.core.cards import card

    config = load_config(path)
    assert config.name == path.stem
    assert all(card(model.card, "generator") for model in config.models)
    assert card(config.judge.card, "judge")
