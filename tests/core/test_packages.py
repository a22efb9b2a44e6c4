"""Metadata of packages is read once, and again where `sys.path` has changed."""

import importlib.metadata
import sys

import pytest

from local_bench.core import environment


def test_versions_are_those_of_the_metadata_and_a_copy():
    results = environment.versions()
    on_path = list(importlib.metadata.distributions())
    here = {item.name.lower(): item.version for item in reversed(on_path)}  # the first on the path is what is imported
    assert results == {name: here[name.lower()] for name in environment.PACKAGES if name.lower() in here}
    assert results["numpy"]
    results.clear()
    assert environment.versions()


def test_entry_points_are_read_once_for_a_path(tmp_path, monkeypatch):
    group = "local_bench.tests"
    assert environment.entry_points(group) == ()
    about = tmp_path / "added-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\none = added:One\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (point,) = environment.entry_points(group)
    assert (point.name, point.value) == ("one", "added:One")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: pytest.fail("read again"))
    assert environment.entry_points(group) == (point,)
