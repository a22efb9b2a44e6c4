"""`suites fetch` from servers on loopback: every benchmark in its authors' layout, read by its suite; hostile archives,
a second call, and what cannot be had."""

import hashlib
import io
import json
import shutil
import tarfile
import threading
import zipfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from local_bench.cli import main as command_line
from local_bench.core import environment
from local_bench.models import datasets as dataset_files
from local_bench.models.datasets import RECORD, datasets, is_data
from local_bench.suites.registry import suite, suite_names

from ..conftest import ROOT
from ..models.hub import Hub, Repo, commit_of
from ..suites.benchmarks import layouts

COMMIT = commit_of("data")
SHIPPED = yaml.safe_load((ROOT / "configs/datasets.yaml").read_text())["datasets"]


class Web:
    """Serves bytes by path, as GitHub does its archives and another host its images."""

    def __init__(self):
        self.served: dict[str, bytes] = {}
        self.requests: list[str] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                web.requests.append(self.path)
                data = web.served.get(self.path)
                self.send_response(404 if data is None else 200)
                self.end_headers()
                self.wfile.write(data or b"")  # without a length, as GitHub's archives come

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@dataclass
class Ended:
    status: int
    out: str
    err: str

    def refused(self, *messages):
        assert (self.status, self.out) == (2, "")
        sentence = self.err.splitlines()[-1]
        for message in messages:
            assert message in sentence


class Lab:
    """A machine with its own datasets.yaml, whose sources are on loopback."""

    def __init__(self, place, web, hub, run):
        self.place, self.web, self.hub, self.run = place, web, hub, run
        self.entries = json.loads(json.dumps(SHIPPED))
        self.out = place / "out"

    def fetch(self, name, *options):
        (self.place / "configs/datasets.yaml").write_text(yaml.safe_dump({"datasets": self.entries}))
        return self.run("suites", "fetch", name, "--out", str(self.out), *options)

    def archive(self, name, files):
        """Serves a folder as the repository's archive; its entry gets this address and the two tasks of the layout."""
        source = self.entries[name]["source"]
        source |= {"host": self.web.url, "revision": COMMIT}
        data = files if isinstance(files, bytes) else tar_of(files)
        self.web.served[f"/{source['repo']}/archive/{COMMIT}.tar.gz"] = data

    def left(self):
        """What is in the folder's place: itself and temporary ones."""
        return sorted(p.name for p in self.place.iterdir() if p.name not in ("configs", "cache", "hf", "served"))


@pytest.fixture
def lab(tmp_path, monkeypatch, capsys):
    web, hub = Web(), Hub({})
    shutil.copytree(ROOT / "configs", tmp_path / "configs", ignore=shutil.ignore_patterns("models", "runs"))
    for name in environment.variables():
        monkeypatch.setenv(name, "")  # set back afterwards
    monkeypatch.setattr(command_line, "isolate", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("LOCAL_BENCH_CONFIGS", str(tmp_path / "configs"))
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))
    import huggingface_hub.constants as constants

    with hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))

        def run(*arguments):
            status = command_line.main(list(arguments))
            captured = capsys.readouterr()
            return Ended(status, captured.out, captured.err)

        yield Lab(tmp_path, web, hub, run)
    web.server.shutdown()
    web.server.server_close()


def tar_of(folder, *extra):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, "Repo-commit")
        for member in extra:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(name, size=1, **fields):
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def servimage(lab):
    """The repository with two orders, a link and a script outside of its data."""
    root = lab.place / "served/servimage"
    layouts.servimage(root / "ServImage_Bench")
    (root / "ServImage_Bench/load.py").write_text("a script")
    (root / "README.md").write_text("words")
    (root / "link").symlink_to("README.md")
    lab.entries["servimage"] |= {"tasks": 2, "files": 4}
    lab.entries["servimage"]["bytes"] = 1000
    lab.archive("servimage", root)
    return root


def test_every_suite_with_a_path_has_an_entry_with_a_full_commit_and_only_data_is_unpacked():
    entries = datasets()
    assert set(entries) == {name for name in suite_names() if suite(name).shipped is None}
    assert all(entry.suite == name for name, entry in entries.items())
    revisions = {name: entry.source.revision for name, entry in entries.items()}
    assert [name for name, revision in revisions.items() if revision is None] == ["ice-bench"]
    data = ["a/b.JSON", "x.webp", "LICENSE", "LICENSE-DATA", "a.parquet"]
    others = ["a.py", "a.pkl", "LICENSE.py", ".DS_Store", "a/.b/c.png", "__MACOSX/a.png", "model.safetensors", "a"]
    assert [name for name in data + others if is_data(name)] == data


def test_servimage_is_fetched_from_the_archive_of_its_commit_once(lab):
    root = servimage(lab)
    planned = lab.fetch("servimage", "--dry-run", "--json")
    data = json.loads(planned.out)
    assert (planned.status, data["bytes"], data["revision"]) == (0, 1000, COMMIT)
    assert (lab.web.requests, lab.left()) == ([], [])
    ended = lab.fetch("servimage", "--json")
    assert ended.status == 0, ended.err
    data = json.loads(ended.out)
    assert (data["n_tasks"], data["n_images"], data["complete"]) == (2, 3, True)
    assert data["config"] == f'suite: {{name: servimage, path: "{lab.out / "ServImage_Bench"}"}}'
    assert "skipped 1 file that is not text, tables or images" in ended.err
    record = json.loads((lab.out / RECORD).read_text())
    assert (record["repo"], record["revision"]) == ("FengxianJi/ServImage", COMMIT)
    unpacked = [p for p in root.rglob("*") if p.is_file() and p.suffix in (".json", ".png") and not p.is_symlink()]
    assert record["files"] == {
        p.relative_to(root).as_posix(): {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for p in unpacked
        for data in [p.read_bytes()]
    }
    assert lab.left() == ["out"]
    assert lab.fetch("servimage").status == 0
    n_requests, first = len(lab.web.requests), (lab.out / RECORD).read_bytes()
    again = lab.fetch("servimage")
    assert again.status == 0
    assert "are already in" in again.err
    assert len(lab.web.requests) == n_requests
    lab.out = lab.place / "elsewhere"
    assert lab.fetch("servimage").status == 0
    assert (lab.out / RECORD).read_bytes() == first


def test_a_folder_with_other_files_is_left_unchanged(lab):
    servimage(lab)
    lab.out.mkdir()
    (lab.out / "notes.txt").write_text("mine")
    lab.fetch("servimage").refused("contains files that were not fetched", "give --out a new folder")
    (lab.out / "notes.txt").unlink()
    assert lab.fetch("servimage").status == 0  # an empty folder is taken
    order = lab.out / "ServImage_Bench/C-Digital/Digital.json"
    order.write_text(order.read_text().replace("Nord", "Sued"))
    lab.fetch("servimage").refused("Digital.json has changed since it was fetched")
    assert "Sued" in order.read_text()
    lab.fetch("servimage", "--revision", commit_of("other")).refused("contains servimage", "give --out a new folder")


def test_of_two_fetches_into_one_folder_the_second_uses_the_files_of_the_first(lab, monkeypatch):
    servimage(lab)
    download, others = dataset_files.download, []

    def during(*arguments):
        monkeypatch.setattr(dataset_files, "download", download)
        others.append(lab.fetch("servimage", *options))
        return download(*arguments)

    options = ()
    monkeypatch.setattr(dataset_files, "download", during)
    ended = lab.fetch("servimage", "--json")
    assert (ended.status, others[0].status) == (0, 0), ended.err
    assert json.loads(ended.out)["complete"]
    assert lab.left() == ["out"]
    shutil.rmtree(lab.out)
    source = lab.entries["servimage"]["source"]
    other = f"/{source['repo']}/archive/{commit_of('other')}.tar.gz"
    lab.web.served[other] = lab.web.served[f"/{source['repo']}/archive/{COMMIT}.tar.gz"]
    options = ("--revision", commit_of("other"))
    monkeypatch.setattr(dataset_files, "download", during)
    lab.fetch("servimage").refused("contains servimage", "give --out a new folder")
    assert json.loads((lab.out / RECORD).read_text())["revision"] == commit_of("other")


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        (member("Repo-commit/../../outside.json"), "points outside the archive"),
        (member("/tmp/outside.json"), "points outside the archive"),
        (member("Repo-commit/ServImage_Bench/a.png", 0, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link"),
        (member("Repo-commit/ServImage_Bench/a.png", 0, type=tarfile.LNKTYPE, linkname="x"), "is a link"),
        (member("Repo-commit/ServImage_Bench/a.png", 0, type=tarfile.FIFOTYPE), "is a link or a device"),
        (member("Repo-commit/ServImage_Bench/C-Digital/Digital.json"), "is in the archive twice"),
        (member("Repo-commit/other.bin", 3_000_000), "unpacks to more than 0.002 GB"),
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda _: b"no archive at all", "is damaged"),
        (lambda _: b"x" * 2_000_001, "more than 0.002 GB"),
    ],
)
def test_a_hostile_damaged_or_too_large_archive_leaves_nothing(lab, hostile, message):
    member_of = (hostile,) if isinstance(hostile, tarfile.TarInfo) else ()
    data = tar_of(servimage(lab), *member_of)
    lab.archive("servimage", data if member_of else hostile(data))
    lab.entries["servimage"]["max_bytes"] = 2_000_000
    lab.fetch("servimage").refused(message)
    assert lab.left() == []


def test_an_unavailable_archive_is_an_error(lab, monkeypatch):
    root = servimage(lab)
    shutil.rmtree(root / "ServImage_Bench")
    lab.archive("servimage", root)
    lab.fetch("servimage").refused("has no files in ServImage_Bench")
    again = f"`local-bench suites fetch servimage --out {lab.out}`"
    lab.fetch("servimage", "--revision", "main").refused("is not a full commit", again[:-1])
    lab.fetch("servimage", "--revision", commit_of("none")).refused("returned HTTP 404", again)
    lab.fetch("servimages").refused("did you mean 'servimage'?")
    lab.fetch("printshop").refused("is included in local-bench")
    lab.entries["servimage"]["bytes"] = 10**18
    lab.fetch("servimage").refused("needs 2000000000.0 GB", "larger disk")
    lab.entries["servimage"] |= {"bytes": 1000}
    lab.entries["servimage"]["source"]["host"] = "http://127.0.0.1:9"
    lab.fetch("servimage").refused("cannot be downloaded (ConnectError): check the network", again)
    monkeypatch.setattr(dataset_files, "download", _full)
    lab.fetch("servimage").refused("No space left on device")
    assert lab.left() == []


def _full(*_):
    raise OSError(28, "No space left on device")


def test_files_that_the_suite_does_not_read_completely_exit_with_1(lab):
    servimage(lab)
    for entry, sentence in (
        ({"tasks": 3, "files": 4}, "2 tasks were found, but this benchmark has 3"),
        ({"tasks": 2, "files": 5}, "4 files were downloaded, but this commit has 5"),
    ):
        lab.entries["servimage"] |= entry
        ended = lab.fetch("servimage", "--json")
        assert (ended.status, json.loads(ended.out)["complete"], sentence in ended.err) == (1, False, True)
    shutil.rmtree(lab.out)
    root = lab.place / "served/servimage"
    (root / "ServImage_Bench/C-Digital/Digital.json").write_text("[]")
    (root / "ServImage_Bench/C-Portrait/Portrait.json").write_text('[{"task_id": "a b"}]')
    lab.archive("servimage", root)
    ended = lab.fetch("servimage", "--json")
    assert (ended.status, json.loads(ended.out)["n_tasks"]) == (1, 0)
    assert "Portrait.json, line 1" in ended.err


def hype(lab):
    """The list in the repository, its images elsewhere."""
    root, images = lab.place / "served/hype", lab.place / "served/pictures"
    (root / "src/tasks").mkdir(parents=True)
    (root / "LICENSE-DATA").write_text("CC BY 4.0")
    shutil.copy(layouts.hype(images), root / "src/tasks/public.json")
    lab.archive("hype-edit-1", root)
    lab.entries["hype-edit-1"] |= {"tasks": 3, "files": 6}
    lab.entries["hype-edit-1"]["pictures"]["url"] = f"{lab.web.url}/cdn/tasks/{{task_id}}/{{name}}"
    for path in images.glob("*/*.png"):
        lab.web.served[f"/cdn/tasks/{path.relative_to(images)}"] = path.read_bytes()


def test_hype_edit_images_come_from_their_own_server_once(lab):
    hype(lab)
    lost = lab.web.served.pop("/cdn/tasks/two-1/002.png")
    lab.fetch("hype-edit-1").refused("two-1/002.png returned HTTP 404")
    assert lab.left() == []
    lab.web.served["/cdn/tasks/two-1/002.png"] = lost
    ended = lab.fetch("hype-edit-1", "--json")
    assert ended.status == 0, ended.err
    assert (json.loads(ended.out)["n_tasks"], json.loads(ended.out)["complete"]) == (3, True)
    assert lab.web.requests.count("/cdn/tasks/mug-1/001.png") == 1
    files = json.loads((lab.out / RECORD).read_text())["files"]
    assert {"LICENSE-DATA", "tasks/public.json", "tasks/two-1/002.png"} < set(files)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"task_id": "../x", "input_images": ["a.png"]}]', "cannot be fetched"),
        ('[{"task_id": "x", "input_images": ["../../a.png"]}]', "cannot be fetched"),
        ('[{"task_id": "x", "input_images": ["a.sh"]}]', "cannot be fetched"),
        ('{"task_id": "x"}', "is not a list of tasks"),
        ("[", "is not a list of tasks"),
    ],
)
def test_a_list_that_names_no_images_is_refused(lab, text, message):
    hype(lab)
    root = lab.place / "served/hype"
    (root / "src/tasks/public.json").write_text(text)
    lab.archive("hype-edit-1", root)
    lab.fetch("hype-edit-1").refused(message)
    assert lab.left() == []


def on_hub(lab, name):
    """The folder of the dataset repository of an entry."""
    source = lab.entries[name]["source"]
    folder = lab.place / "served" / name
    folder.mkdir(parents=True)
    lab.hub.repos[f"datasets/{source['repo']}"] = Repo(folder, source.get("revision") or COMMIT, branch="main")
    (folder / "README.md").write_text("words")
    return folder


def test_idea_bench_is_fetched_from_the_hub_at_its_pinned_commit(lab):
    folder = on_hub(lab, "idea-bench")
    layouts.idea(folder / "dataset")
    (folder / "dataset/dataset_script.py").write_text("a script")
    lab.entries["idea-bench"]["tasks"] = 3
    listed = json.loads(lab.fetch("idea-bench", "--dry-run", "--json").out)
    assert listed["bytes"] == sum((folder / name).stat().st_size for name in listed["files"])
    assert not [path for path in lab.hub.requests if "/resolve/" in path]
    ended = lab.fetch("idea-bench", "--json")
    assert ended.status == 0, ended.err
    data = json.loads(ended.out)
    assert (data["n_tasks"], data["complete"], data["path"]) == (3, True, str(lab.out / "dataset"))
    assert data["revision"] == SHIPPED["idea-bench"]["source"]["revision"]
    record = json.loads((lab.out / RECORD).read_text())
    assert sorted(record["files"]) == sorted(listed["files"])
    assert not [name for name in record["files"] if name.endswith(".py")]


def test_the_command_itself_uses_the_network(lab, cli_process):
    """In a process of its own, where the environment is offline until the command changes it."""
    layouts.idea(on_hub(lab, "idea-bench") / "dataset")
    lab.entries["idea-bench"]["tasks"] = 3
    assert lab.fetch("idea-bench", "--dry-run").status == 0  # writes the entries
    place = {name: str(lab.place / name) for name in ("configs", "cache", "hf", "out")}
    env = {"HF_ENDPOINT": lab.hub.url, "HF_HOME": place["hf"], "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1,localhost"}
    env |= {"LOCAL_BENCH_CACHE": place["cache"], "LOCAL_BENCH_CONFIGS": place["configs"]}
    ended = cli_process("suites", "fetch", "idea-bench", "--out", place["out"], "--json", **env)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["complete"]


def test_ice_bench_is_unpacked_and_the_commit_that_main_is_at_is_pinned_in_the_record(lab):
    folder = on_hub(lab, "ice-bench")
    ice(lab, folder)
    (folder / "models.zip").write_bytes(b"weights")
    lab.entries["ice-bench"]["tasks"] = 5
    ended = lab.fetch("ice-bench", "--json")
    assert ended.status == 0, ended.err
    data = json.loads(ended.out)
    assert (data["n_tasks"], data["complete"], data["revision"]) == (5, True, COMMIT)
    assert data["path"] == str(lab.out / "data/data.jsonl")
    assert COMMIT in ended.err
    names = set(json.loads((lab.out / RECORD).read_text())["files"])
    assert {"README.md", "data/data.jsonl", "data/images/i2.png"} < names
    assert not [name for name in names if name.endswith(".zip") or "MACOSX" in name]
    assert lab.fetch("ice-bench").status == 0  # the commit of the record, whatever main is at now
    assert not [path for path in lab.hub.requests if path.endswith("models.zip")]


def ice(lab, folder, *extra):
    """dataset.zip as others have read it: `data/` at its top, images by their paths from there."""
    unpacked = lab.place / "served/unzipped"
    file = layouts.ice(unpacked / "data")
    items = [json.loads(line) for line in file.read_text().splitlines()]
    for item in items:
        for key in ("SourceImage", "SourceMask"):
            item[key] = item[key] and f"data/{item[key]}"
        item["ReferenceImages"] = [f"data/{name}" for name in item["ReferenceImages"]]
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    with zipfile.ZipFile(folder / "dataset.zip", "w") as zipped:
        for path in sorted(unpacked.rglob("*")):
            zipped.write(path, path.relative_to(unpacked))
        zipped.writestr("__MACOSX/data/._data.jsonl", b"x")
        for info, data in extra:
            zipped.writestr(info, data)


def _zip_link():
    info = zipfile.ZipInfo("data/link.png")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (zipfile.ZipInfo("../outside.json"), "points outside the archive"),
        (zipfile.ZipInfo("data\\..\\..\\outside.json"), "points outside the archive"),
        (_zip_link(), "is a link, a device or encrypted"),
        (zipfile.ZipInfo("data/data.jsonl/x.png"), "cannot write"),
    ],
)
def test_a_hostile_zip_leaves_nothing(lab, extra, message):
    ice(lab, on_hub(lab, "ice-bench"), (extra, b"x"))
    lab.fetch("ice-bench").refused(message)
    assert lab.left() == []


def test_a_missing_repository_is_an_error(lab):
    on_hub(lab, "ice-bench")
    lab.fetch("ice-bench", "--revision", commit_of("none")).refused("has no commit", "suites fetch ice-bench --out")
    lab.entries["ice-bench"]["source"]["files"] = ["nothing.zip"]
    lab.fetch("ice-bench").refused("has none of nothing.zip")
    lab.fetch("idea-bench").refused("has no repository ali-vilab/IDEA-Bench", "configs/datasets.yaml")
    assert lab.left() == []
