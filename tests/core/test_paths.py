from pathlib import Path

import pytest

from local_bench.core.errors import UserError
from local_bench.core.files import configs_dir, find_config, is_safe_id, safe_join


def test_names_that_are_ids():
    assert [name for name in ("portrait-001", "a", "A.b_c-9") if not is_safe_id(name)] == []
    others = ["", "../x", "a/b", "a\\b", ".hidden", "-flag", "a..b", "a\0b", "a b", "é", "x" * 129, "a\n"]
    assert [name for name in others if is_safe_id(name)] == []


@pytest.mark.parametrize("relative", ["", "/etc/passwd", "../up", "a/../../up", "a\0b"])
def test_paths_outside_the_folder_are_refused(tmp_path, relative):
    with pytest.raises(UserError, match="path"):
        safe_join(tmp_path, relative)


def test_a_loop_of_links_hides_no_link_that_leaves_the_folder(tmp_path):
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "x").write_text("outside")
    (folder / "loop").symlink_to("loop")
    (folder / "out").symlink_to(tmp_path)
    (folder / "there").symlink_to("loop/../out")
    for relative in ("out/x", "loop/../out/x", "loop/../there/x", "loop/../loop/../out/x", "there/x"):
        with pytest.raises(UserError, match="leads out"):
            safe_join(folder, relative)
    assert safe_join(folder, "images/x.png") == folder / "images" / "x.png"
    assert not safe_join(folder, "loop").exists()
    assert not safe_join(folder, "loop/x").exists()  # a missing file


def test_a_snapshot_of_the_hubs_cache_is_read_through_its_links_and_no_others(tmp_path):
    repository = tmp_path / "hub/datasets--org--set"
    snapshot, blob = repository / "snapshots" / ("a" * 40), repository / "blobs/01ab"
    images, plain = snapshot / "images", tmp_path / "plain"
    for folder in (blob.parent, images, plain):
        folder.mkdir(parents=True)
    blob.write_text("x")
    (tmp_path / "secret").write_text("y")
    (images / "a.png").symlink_to("../../../blobs/01ab")
    (images / "b.png").symlink_to(tmp_path / "secret")
    (images / "c.png").symlink_to(repository / "refs")
    (plain / "a.png").symlink_to(blob)
    assert safe_join(snapshot, "images/a.png").read_text() == safe_join(images, "a.png").read_text() == "x"
    refused = [(images, name) for name in ("b.png", "c.png", "../../../blobs/../../../secret")]
    for folder, name in [*refused, (plain, "a.png")]:
        with pytest.raises(UserError, match="leads out"):
            safe_join(folder, name)
    blob.parent.rename(tmp_path / "elsewhere")
    blob.parent.symlink_to(tmp_path / "elsewhere")  # the blobs themselves are a link
    with pytest.raises(UserError, match="leads out"):
        safe_join(snapshot, "images/a.png")


def test_a_config_is_found_by_name(tmp_path, monkeypatch):
    """A lab's own before the shipped one; a file or a run directory of that name before both."""
    monkeypatch.chdir(tmp_path)
    studio, shipped = Path("studio"), configs_dir() / "runs/studio.yaml"
    assert find_config(studio) == shipped
    studio.mkdir()
    assert find_config(studio) == shipped
    of_lab = tmp_path / "local-bench/runs/studio.yaml"
    of_lab.parent.mkdir(parents=True)
    of_lab.touch()
    assert find_config(studio).resolve() == of_lab
    (studio / "run.yaml").touch()
    assert find_config(studio) == studio
    for other in ("studio.yaml", "./studios", "runs/studio", "nothing"):
        assert find_config(Path(other)) == Path(other)
