from pathlib import Path

import pytest

from local_bench.core.errors import UserError
from local_bench.core.paths import configs_dir, find_config, is_safe_id, safe_join


@pytest.mark.parametrize("name", ["portrait-001", "a", "A.b_c-9"])
def test_names_that_are_ids(name):
    assert is_safe_id(name)


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "a\\b", ".hidden", "-flag", "a..b", "a\0b", "a b", "é", "x" * 129, "a\n"]
)
def test_names_that_are_no_ids(name):
    assert not is_safe_id(name)


@pytest.mark.parametrize("relative", ["", "/etc/passwd", "../up", "a/../../up", "a\0b"])
def test_paths_outside_the_folder_are_refused(tmp_path, relative):
    with pytest.raises(UserError, match="path"):
        safe_join(tmp_path, relative)


def test_a_link_that_leaves_the_folder_is_refused(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="leads out"):
        safe_join(tmp_path / "inside", "link/x.png")
    assert safe_join(tmp_path / "inside", "images/x.png") == tmp_path / "inside" / "images" / "x.png"


@pytest.mark.parametrize("relative", ["loop/../out/x", "loop/../there/x", "loop/../loop/../out/x", "there/x"])
def test_a_loop_of_links_hides_no_link_that_leaves_the_folder(tmp_path, relative):
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "x").write_text("outside")
    (folder / "loop").symlink_to("loop")
    (folder / "out").symlink_to(tmp_path)
    (folder / "there").symlink_to("loop/../out")
    with pytest.raises(UserError, match="leads out"):
        safe_join(folder, relative)


def test_a_loop_of_links_is_a_missing_file(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "a/x"):
        assert not safe_join(tmp_path, name).exists()


def test_a_snapshot_of_the_hubs_cache_is_read_through_its_links_and_no_others(tmp_path):
    repository = tmp_path / "hub/datasets--org--set"
    snapshot = repository / "snapshots" / ("a" * 40)
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs/01ab").write_text("x")
    (tmp_path / "secret").write_text("y")
    (snapshot / "images").mkdir(parents=True)
    (snapshot / "images/a.png").symlink_to("../../../blobs/01ab")
    (snapshot / "images/b.png").symlink_to(tmp_path / "secret")
    (snapshot / "images/c.png").symlink_to(repository / "refs")
    assert safe_join(snapshot, "images/a.png").read_text() == "x"
    assert safe_join(snapshot / "images", "a.png").read_text() == "x"
    for name in ("b.png", "c.png", "../../../blobs/../../../secret"):
        with pytest.raises(UserError, match="leads out"):
            safe_join(snapshot / "images", name)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.png").symlink_to(repository / "blobs/01ab")
    with pytest.raises(UserError, match="leads out"):
        safe_join(plain, "a.png")


def test_a_link_replacing_the_blobs_is_refused(tmp_path):
    repository = tmp_path / "datasets--org--set"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/01ab").write_text("x")
    (repository / "blobs").symlink_to(tmp_path / "elsewhere")
    (snapshot / "a.png").symlink_to("../../blobs/01ab")
    with pytest.raises(UserError, match="leads out"):
        safe_join(snapshot, "a.png")


def test_a_config_is_found_by_name(tmp_path, monkeypatch):
    """A lab's own before the shipped one; a file or a run directory of that name before both."""
    monkeypatch.chdir(tmp_path)
    studio, shipped = Path("studio"), configs_dir() / "runs/studio.yaml"
    assert find_config(studio) == shipped
    studio.mkdir()
    assert find_config(studio) == shipped
    own = tmp_path / "local-bench/runs/studio.yaml"
    own.parent.mkdir(parents=True)
    own.touch()
    assert find_config(studio).resolve() == own
    (studio / "run.yaml").touch()
    assert find_config(studio) == studio
    for other in ("studio.yaml", "./studios", "runs/studio", "nothing"):
        assert find_config(Path(other)) == Path(other)
