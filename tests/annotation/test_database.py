"""The database of annotations: its tokens, what it forgets, and files that it refuses."""

import pytest

from local_bench.annotation.database import AnnotationDatabase
from local_bench.annotation.protocol import Answer, Item, ItemImage
from local_bench.annotation.session import add_people
from local_bench.core.errors import LedgerDamaged, StorageError

ITEM = Item("accept", "t1", (ItemImage(1, "0" * 64), ItemImage(2, "1" * 64)))
GIVEN = Answer({"1": {"overall": True}, "2": {"overall": False}}, None, ("artefacts",), "the hand, six fingers")


@pytest.fixture
def database(tmp_path):
    with AnnotationDatabase(tmp_path / "annotations.sqlite", create=True) as opened:
        opened.add_items([ITEM])
        opened.add_annotator("ann", "annotator", "en")
        yield opened


def test_tokens_are_hashed(database):
    tokens = add_people(database, {"eve": "annotator", "ann": "annotator"}, "en")
    assert database.annotator_of(tokens["eve"]).name == "eve"
    assert database.annotator_of(tokens["eve"] + "x") is None
    assert add_people(database, {"eve": "annotator"}, "en") == {}
    stored = database.path.read_bytes() + database.path.with_name("annotations.sqlite-wal").read_bytes()
    assert tokens["eve"].encode() not in stored


def test_forgetting_leaves_no_trace_in_the_files(database):
    add_people(database, {"Xanthippe": "annotator", "bob": "annotator"}, "en")
    secret = Answer({}, "other", (), "my private remark")
    database.save("r1", "Xanthippe", ITEM.item_id, "answer", secret, None)
    database.save("r2", "bob", ITEM.item_id, "answer", GIVEN, None)
    folder = database.path.parent
    assert b"Xanthippe" in b"".join(p.read_bytes() for p in folder.iterdir())
    assert database.forget("Xanthippe") == 1
    left = b"".join(p.read_bytes() for p in folder.iterdir())
    assert b"Xanthippe" not in left
    assert b"my private remark" not in left
    assert [one.annotator for one in database.answers()] == ["bob"]


def test_items_are_content_addressed():
    same = Item("accept", "t1", ITEM.images, (), (("m", 1, 0.5),), {"1": {"overall": True}})
    other = Item("accept", "t1", (ItemImage(1, "0" * 64), ItemImage(2, "2" * 64)))
    assert same.item_id == ITEM.item_id != other.item_id


def test_a_damaged_database_is_refused(tmp_path):
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"not a database" * 100)
    with pytest.raises(LedgerDamaged, match="damaged"):
        AnnotationDatabase(broken)


def test_a_database_that_cannot_be_written_is_read(database, tmp_path, monkeypatch):
    """While it is served by someone else, from the log too; and closed, in a folder where SQLite can make no file."""
    path = database.path
    database.save("r1", "ann", ITEM.item_id, "answer", GIVEN, None)
    monkeypatch.setattr("os.access", lambda *_: False)
    with AnnotationDatabase(path) as read:
        assert [answer.given for answer in read.answers()] == [GIVEN]
        with pytest.raises(StorageError, match="readonly"):
            read.set_meta("a", "b")
    database.close()
    before = path.read_bytes()
    with AnnotationDatabase(path) as read:
        assert [answer.given for answer in read.answers()] == [GIVEN]
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
    monkeypatch.undo()
    with AnnotationDatabase(tmp_path / "merged.sqlite", create=True) as merged:
        monkeypatch.setattr("os.access", lambda *_: False)
        merged.absorb(path)
        assert [answer.given for answer in merged.answers()] == [GIVEN]
