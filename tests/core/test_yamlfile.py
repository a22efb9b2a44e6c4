import pytest
from pydantic import Field

from local_bench.core.errors import ConfigError
from local_bench.core.yamlfile import Strict, load_yaml


class Inner(Strict):
    height: int = Field(64, ge=16)


class Outer(Strict):
    name: str
    inner: Inner = Inner()
    many: list[Inner] = Field(default=[])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\ninner:\n  hieght: 64\n", "line 3: there is no key 'inner.hieght'; did you mean 'height'?"),
        (
            "name: x\nmany:\n  - {height: 32}\n  - {width: 3}\n",
            "line 4: there is no key 'many.1.width'; the keys here are height",
        ),
        ("name: x\ninner: {height: 3}\n", "line 2: inner.height: input should be greater than or equal to 16, not 3"),
        ("name: 3\n", "line 1: name: input should be a valid string, not 3"),
        ("inner: {}\n", "the key 'name' is missing: add it"),
        ("name: x\nname: y\n", "line 2: the key 'name' is duplicated"),
        ("name: [x\n", "not valid YAML"),
        ("- 1\n", "must be a mapping"),
        ("name: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
    ],
)
def test_an_error_states_the_line_and_the_remedy(tmp_path, text, says):
    path = tmp_path / "c.yaml"
    path.write_text("name: x\ninner: {height: 32}\n")
    assert load_yaml(path, Outer).inner.height == 32
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, Outer)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
