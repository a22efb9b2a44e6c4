import pytest

from local_bench.core.errors import UserError
from local_bench.core.paths import is_safe_id, safe_join


@pytest.mark.parametrize("name", ["portrait-001", "a", "A.b_c-9"])
def test_names_that_are_ids(name):
    assert is_safe_id(name)


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "a\\b", ".hidden", "-flag", "a..b", "a\0b", "a b", "é", "x" * 129, "a\n"]
)
def test_names_that_are_no_ids(name):
    assert not is_safe_id(name)


@pytest.mark.parametrize("relative", ["", "/etc/passwd", "../up", "a/../../up", "a\0b"])
def test_what_leaves_the_folder_is_refused(tmp_path, relative):
    with pytest.raises(UserError, match="path"):
        safe_join(tmp_path, relative)


def test_a_link_that_leaves_the_folder_is_refused(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="leads out"):
        safe_join(tmp_path / "inside", "link/x.png")
    assert safe_join(tmp_path / "inside", "images/x.png") == tmp_path / "inside" / "images" / "x.png"
