import socket

import pytest

from local_bench.core.errors import ConfigError
from local_bench.runs.config import dump_config, load_config, load_config_to_judge

GOOD = "name: x\nmodels:\n  - {card: tiny-flux}\n"


def load(tmp_path, text, *settings):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_config(path, settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "sead: 1\n", "line 4: there is no key 'sead'; did you mean 'seed'?"),
        (GOOD + "judge:\n  in_fligth: 3\n", "line 5: there is no key 'judge.in_fligth'; did you mean 'in_flight'?"),
        (GOOD + "attempts: 3\n", "line 4: there is no key 'attempts'; did you mean 'models.0.attempts'?"),
        (GOOD + "engine: {seed: 3}\n", "no key 'engine.seed'; did you mean 'seed' or 'judge.seed' or 'panel.0.seed'?"),
        ("name: x\nmodels:\n  - {card: a, height: 100}\n", "multiple of 16, not 100"),
        ("name: ../x\nmodels:\n  - {card: a}\n", "line 1: name: use letters"),
        ("name: x\nmodels: []\n", "line 2: models"),
        ("name: x\nmodels:\n  - {card: a}\n  - {card: a}\n", "two models are called 'a'"),
        (GOOD + "acceptance: {brf: .nan}\n", "acceptance.brf"),
        (GOOD + "panel: [{card: tiny-qwen3-vl}]\n", "a panel is added to a judge"),
    ],
)
def test_an_error_names_its_line_and_the_nearest_valid_key(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)


def test_settings_change_list_items_and_add_missing_keys(tmp_path):
    config = load(tmp_path, GOOD, "models.0.height=64", "judge.card=x", "judge.in_flight=3", "suite.path=a.jsonl")
    assert (config.models[0].height, config.judge.in_flight, config.suite.path) == (64, 3, "a.jsonl")


def test_all_mistakes_are_listed_with_their_places(tmp_path):
    text = "name: x\nsuite: {limt: 2}\nmodels:\n  - {card: a, hight: 64}\n  - {card: b}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, "models.1.attempts=x", "judge={protocol: jsn}")
    path = tmp_path / "run.yaml"
    assert str(caught.value).splitlines() == [
        f"{path}, line 2: there is no key 'suite.limt'; did you mean 'limit'?",
        f"{path}, line 4: there is no key 'models.0.hight'; did you mean 'height'?",
        "--set: models.1.attempts: input should be a valid integer, not 'x'",
        "--set: judge.protocol: input should be 'json' or 'logit', not 'jsn'",
    ]


def test_all_unknown_and_missing_models_are_listed(cli, tmp_path):
    models = "models: [{card: tiny-flus}, {card: flux1-dev}, {card: sd35-large}]\njudge: {card: qwen3-vl-8b}\n"
    (tmp_path / "x.yaml").write_text("name: x\nmetrics: []\n" + models)
    ended = cli("run", "x.yaml")
    assert ended.returncode == 2
    names = ["tiny-flus", "flux1-dev", "sd35-large", "qwen3-vl-8b"]
    assert [next(name for name in names if name in line) for line in ended.stderr.splitlines()] == names
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("setting", ["engine.device=cuda:9", "engine.device=tpu", "suite.name=x", "metrics=[x]"])
def test_a_run_that_is_refused_leaves_no_directory(cli, tmp_path, setting):
    (tmp_path / "x.yaml").write_text(GOOD + "judge: null\n")
    assert cli("run", "x.yaml", "--set", setting).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


def test_nobody_judges_by_default(cli, tmp_path):
    (tmp_path / "x.yaml").write_text(GOOD)
    ended = cli("run", "x.yaml", "--set", "metrics=[pique]")
    assert ended.returncode == 2
    assert "did you mean 'piqe'?\njudge: name the judge" in ended.stderr
    unnamed = cli("run", "x.yaml", "--set", "judge.transport=local")
    assert (unnamed.returncode, "judge.card: name the judge's card" in unnamed.stderr) == (2, True)
    planned = cli("plan", "x.yaml")
    assert planned.returncode == 0
    assert "judge: name the judge" in planned.stderr
    assert "judge: none" in planned.stdout


@pytest.mark.parametrize(
    "setting", ["seed", "=1", "models.7.height=64", "models.x.height=1", "name.sub=1", "seed=[", "no.such=1"]
)
def test_an_invalid_setting_is_an_error(tmp_path, setting):
    with pytest.raises(ConfigError):
        load(tmp_path, GOOD, setting)


def test_a_written_config_is_complete_portable_and_loads_equal(tmp_path):
    config = load(tmp_path, GOOD, "suite.path=/data/secret/tasks.jsonl", "judge={card: x}")
    text = dump_config(config)
    assert "/data" not in text
    assert "request_timeout_s: 300.0" in text
    (tmp_path / "again.yaml").write_text(text)
    assert dump_config(load_config(tmp_path / "again.yaml")) == text


ADDRESS = "base_url must be a URL like"


@pytest.mark.parametrize(
    ("key", "judge", "message"),
    [
        ("judge: {}", "{api_key_env: HOME}", "api_key_env must be VLLM_API_KEY"),
        ("panel: [{}]", "{api_key_env: HOME}", "api_key_env must be VLLM_API_KEY"),
        ("judge: {}", "{base_url: 'http://user:hunter2@host/v1'}", "base_url must not contain a user name or password"),
        ("panel: [{}]", "{base_url: 'http://hunter2@host/v1'}", "base_url must not contain a user name or password"),
        ("judge: {}", "{base_url: 'file:///etc/passwd'}", ADDRESS),
        ("judge: {}", "{base_url: judge}", ADDRESS),
        ("judge: {}", "{base_url: 'http://host:port/v1'}", ADDRESS),
        ("panel: [{}]", "{base_url: 'http://host/v1?key=hunter2'}", ADDRESS),
        ("judge: {}", "{extra_args: [--host, 0.0.0.0]}", "'--host' is not among the arguments of vLLM that a config"),
    ],
)
def test_keys_are_sent_to_configured_servers_only(tmp_path, key, judge, message):
    """tests/hostile/test_secrets.py has other names of keys."""
    text = GOOD + key.replace("{}", judge.replace("{", "{card: tiny-qwen3-vl, name: other, seed: 1, ")) + "\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_keys_are_read_from_three_kinds_of_variables(tmp_path):
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY", "LOCAL_BENCH_KEY"):
        judge = f"{{card: tiny-qwen3-vl, base_url: 'https://[::1]:8000/v1', api_key_env: {name}}}"
        assert load(tmp_path, f"{GOOD}judge: {judge}\n").judge.api_key_env == name


def test_a_run_directory_does_not_determine_where_images_and_keys_are_sent(tmp_path):
    path = tmp_path / "run.yaml"
    url = "http://127.0.0.1:9/v1"
    judge = f"card: tiny-qwen3-vl, base_url: '{url}', api_key_env: OPENAI_API_KEY"
    path.write_text(f"{GOOD}judge: {{{judge}}}\npanel: [{{{judge}, name: second, seed: 1}}]\n")
    assert load_config(path).judge.api_key_env == "OPENAI_API_KEY"  # a config given by the user is trusted
    with pytest.raises(ConfigError, match=rf"add `--set judge\.base_url={url}`"):
        load_config_to_judge(path)
    with pytest.raises(ConfigError, match=rf"add `--set panel\.0\.base_url={url}`"):
        load_config_to_judge(path, (f"judge.base_url={url}",))
    confirmed = load_config_to_judge(path, (f"judge.base_url={url}", "panel.0.base_url=http://mine/v1"))
    assert [judge.base_url for judge in confirmed.judges] == [url, "http://mine/v1"]
    assert {judge.api_key_env for judge in confirmed.judges} == {"VLLM_API_KEY"}
    confirmed = load_config_to_judge(path, ("judge.base_url=null", "panel=[]", "judge.api_key_env=LOCAL_BENCH_K"))
    assert (confirmed.judge.base_url, confirmed.judge.api_key_env) == (None, "LOCAL_BENCH_K")
    trusted = load_config_to_judge(path, ("panel.0.base_url=http://mine/v1",), allow_remote=True)
    assert [judge.base_url for judge in trusted.judges] == [url, "http://mine/v1"]
    assert {judge.api_key_env for judge in trusted.judges} == {"VLLM_API_KEY"}


def test_judging_an_untrusted_run_contacts_no_server(cli, tmp_path):
    """The complete command, with a listening socket at the URL of its run.yaml."""
    run = tmp_path / "theirs"
    run.mkdir()
    (run / "ledger.sqlite").touch()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        (run / "run.yaml").write_text(
            GOOD + f"judge: {{card: tiny-qwen3-vl, base_url: '{url}', api_key_env: OPENAI_API_KEY}}\n"
        )
        before = {path: path.read_bytes() for path in run.iterdir()}
        for target in (run, run / "run.yaml"):
            ended = cli("judge", target, OPENAI_API_KEY="hunter2")
            assert ended.returncode == 2
            assert "must not decide where images and keys are sent" in ended.stderr
            assert f"--set judge.base_url={url}" in ended.stderr
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert {path: path.read_bytes() for path in run.iterdir()} == before


OTHERS = ("rubrics: paper", "hype_usable: true", "source_max_pixels: 4096", "chat_template_kwargs: {a: true}")
OTHERS += ("served_model: other", "base_url: 'http://mine/v1'", "protocol: logit", "max_pixels: 2048", "seed: 1")
OTHERS += ("transport: brightness",)  # of a package


@pytest.mark.parametrize("setting", [*OTHERS, "in_flight: 3", "transport: local", "canaries: false", "max_restarts: 1"])
def test_one_model_is_another_judge_only_with_settings_that_change_answers(tmp_path, setting):
    panel = f"judge: {{card: tiny-qwen3-vl}}\npanel: [{{card: tiny-qwen3-vl, name: twin, {setting}}}]\n"
    if setting in OTHERS:
        assert load(tmp_path, GOOD + panel).judges[1].label == "twin"
    else:
        with pytest.raises(ConfigError, match="'tiny-qwen3-vl' and 'twin' are the same judge under two names"):
            load(tmp_path, GOOD + panel)


@pytest.mark.parametrize(("text", "hint"), [("1e-3", True), ("1e3", True), ("nan", False), ("'four'", False)])
def test_a_number_that_yaml_reads_as_a_text_is_explained(tmp_path, text, hint):
    (tmp_path / "c.yaml").write_text("name: c\nmodels: [{card: tiny-flux}]\n")
    with pytest.raises(ConfigError, match="guidance_scale: input should be a valid number, not") as refused:
        load_config(tmp_path / "c.yaml", (f"models.0.guidance_scale={text}",))
    assert ("point and a sign before an exponent, as in 1.0e-3" in str(refused.value)) == hint
    given = load_config(tmp_path / "c.yaml", ("models.0.guidance_scale=1.0e-3",))
    assert given.models[0].guidance_scale == 0.001
