"""Single files from other servers than the Hub: fetched completely, checked, converted, stored once."""

import hashlib
import io
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.core.yamlfile import check
from local_bench.models.cards import ModelCard, card
from local_bench.models.convert import read_converted
from local_bench.models.fetch import fetch
from local_bench.models.manifest import read_manifest
from local_bench.models.weights import check_local, resolve, resolve_parts, weights_digest

from .test_convert import Runs


class Elsewhere:
    """A web server that is not the Hub: a folder behind http."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.requests, place = folder, [], self
        folder.mkdir()

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                place.requests.append(self.path)
                if not self.path.endswith("/moved.onnx"):
                    super().do_GET()
                    return
                self.send_response(302)
                self.send_header("Location", "http://example.invalid/x")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, name: str, data: bytes) -> str:
        (self.folder / name).write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def __enter__(self) -> "Elsewhere":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def elsewhere(tmp_path):
    with Elsewhere(tmp_path / "elsewhere") as place:
        yield place


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))


def checkpoint(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


TREE = {"params": {"a": torch.ones(2)}}


def served(name: str = "served", **changes) -> ModelCard:
    return ModelCard.model_validate(card("tiny-clip", "metric").model_dump() | {"name": name} | changes)


def test_files_are_checked_where_the_card_has_their_digest(elsewhere):
    declared = elsewhere.put("a.pt", checkpoint(TREE))
    elsewhere.put("b.mat", b"numbers")
    model = served(source={"base_url": elsewhere.url, "files": ["a.pt", "b.mat"], "sha256": {"a.pt": declared}})
    missing = (
        rf"a\.pt of served is not on this machine; its source is {elsewhere.url}.*`local-bench models fetch served`"
    )
    with pytest.raises(WeightsError, match=missing):
        check_local(model)
    manifest = fetch(model)
    assert manifest == read_manifest(model)
    origins = [(o.url, o.checked_by) for o in manifest.origins]
    assert origins == [(f"{elsewhere.url}/a.pt", "the card"), (f"{elsewhere.url}/b.mat", None)]
    assert manifest.origins[0].sha256 == declared
    assert (manifest.repo, set(manifest.files)) == (elsewhere.url, {"a.safetensors", "b.mat"})
    folder = resolve(model)
    assert torch.equal(read_converted(folder / "a.safetensors")["params"]["a"], torch.ones(2))
    digest = weights_digest(folder)
    n_requests, printed = len(elsewhere.requests), []
    fetch(model, say=printed.append)
    assert printed == ["served: all 2 files are already on this machine"]
    fetch(served("twin", source={"base_url": elsewhere.url, "files": ["b.mat"]}))
    assert len(elsewhere.requests) == n_requests  # nothing was downloaded either time
    (folder / "b.mat").unlink()
    (folder / "b.mat").write_bytes(b"other numbers")
    assert weights_digest(folder) != digest
    with pytest.raises(WeightsError, match=r"b\.mat has changed since it was fetched"):
        resolve(model)
    fetch(model)
    assert weights_digest(resolve(model)) == digest


def test_a_part_may_come_from_elsewhere(elsewhere):
    elsewhere.put("head.mat", b"numbers")
    elsewhere.put("body.onnx", b"a graph")
    parts = {"head": {"base_url": elsewhere.url, "files": ["head.mat"]}}
    model = served(source={"base_url": elsewhere.url, "files": ["body.onnx"]}, parts=parts)
    manifest = fetch(model)
    assert set(manifest.parts["head"].files) == {"head.mat"}
    folders = resolve_parts(model)
    assert manifest.weights_sha256 == weights_digest(resolve(model), folders)
    assert {p.name for p in folders["head"].iterdir()} == {"head.mat"}
    with pytest.raises(WeightsError, match="no part 'head'"):
        fetch(model, {"head": "0" * 40})
    of_built = served("built", parts=parts)  # of a model that is built here
    with pytest.raises(WeightsError, match=r"head\.mat of built"):
        check_local(of_built)
    assert fetch(of_built) is None
    check_local(of_built)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"files": ["gone.pth"]}, "gone.pth returned HTTP 404"),
        ({"files": ["a.pth"], "sha256": {"a.pth": "1" * 64}}, "a.pth is not the file that served expects"),
        ({"files": ["evil.pth"]}, "evil.pth was not converted: it uses posix.system"),
        ({"files": ["moved.onnx"]}, "moved.onnx redirects to http://example.invalid/x, which is not https"),
    ],
)
def test_a_refused_file_is_removed(elsewhere, tmp_path, source, message):
    mark = tmp_path / "mark"
    elsewhere.put("a.pth", checkpoint(TREE))
    elsewhere.put("evil.pth", checkpoint({"a": torch.ones(1), "b": Runs(mark)}))
    model = served(source={"base_url": elsewhere.url, **source})
    with pytest.raises(WeightsError) as refusal:
        fetch(model)
    assert message in str(refusal.value)
    assert not mark.exists()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_an_unreachable_server_is_an_error():
    model = served(source={"base_url": "http://127.0.0.1:9", "files": ["a.pth"]})
    with pytest.raises(WeightsError, match=r"a\.pth cannot be downloaded \(ConnectError\): check the network"):
        fetch(model)


NO_REPOSITORIES = ["", "a//b", "a/b/c", "a b/c", "/b", "a/", "../b", "a/..", "-a/b", "a/b.", "a/b--c", "a/b.git", "é/b"]
NO_REPOSITORIES += ["a/b\n", "a/" + "b" * 97, "https://huggingface.co/a/b"]
NO_HOSTS = ["", "a b", "[x", "a:\N{SUPERSCRIPT TWO}", "x" * 64, "a..b"]


def test_a_name_of_a_repository_is_accepted_as_by_the_library():
    for name in ("gpt2", "openai/clip-vit-large-patch14", "a/B_c.d-1"):
        assert served(source={"repo": name}).source.repo == name
        validate_repo_id(name)
    for other in NO_REPOSITORIES[1:]:  # ours is at least as strict; the library accepts ""
        if other not in ("é/b", "a/b\n"):
            with pytest.raises(HFValidationError):
                validate_repo_id(other)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "give one of repo, base_url, folder, gather and build"),
        ({"repo": "a/b", "build": "a:b"}, "give one of"),
        *(({"repo": name}, "must be OWNER/NAME or NAME as on the Hub") for name in NO_REPOSITORIES),
        ({"base_url": "https://a/b"}, "base_url needs files"),
        *(({"base_url": f"https://{host}/", "files": ["x"]}, "the name of a host") for host in NO_HOSTS),
        ({"base_url": "http://a/b", "files": ["x"]}, "must begin with https://"),
        ({"base_url": "https://a/b", "files": ["../x"]}, "not a plain relative path"),
        ({"base_url": "https://a/b", "files": ["/x"]}, "not a plain relative path"),
        ({"base_url": "https://a/b", "files": ["x"], "sha256": {"y": "0" * 64}}, "'y', which is not in files"),
        ({"base_url": "https://a/b", "files": ["x"], "sha256": {"x": "0" * 63}}, "64 hex digits"),
        ({"build": "a:b", "files": ["x"]}, "files needs a repo or a base_url"),
    ],
)
def test_a_source_has_one_form(source, message):
    data = card("tiny-clip", "metric").model_dump() | {"source": source}
    with pytest.raises(ConfigError) as refusal:
        check(data, ModelCard, "card.yaml")
    assert message in str(refusal.value)
