"""A Hub on loopback: serves folders as repositories at one commit, the way the real one answers `snapshot_download`.

Large files are declared with their sha256 and handed out behind a redirect; small ones carry git's own digest. A gated
repository lists its files to everybody and serves them to nobody. A dataset repository has the key
`datasets/OWNER/NAME`.
"""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from local_bench.models.manifest import file_sha256, git_blob_sha1

LARGE = (".safetensors", ".bin", ".pth", ".zip")


@dataclass
class Repo:
    """A folder as a repository, and what the Hub declares wrongly about it in some tests."""

    folder: Path
    commit: str
    gated: bool = False
    declared_sha256: dict[str, str] = field(default_factory=dict)
    declared_bytes: dict[str, int] = field(default_factory=dict)
    branch: str | None = None
    """A name of the commit, such as `main`."""
    refuses: tuple[int, str] | None = None
    """Answers everything with this status and `X-Error-Message`."""

    def names(self) -> list[str]:
        return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())

    def lfs(self, name: str) -> dict[str, Any] | None:
        if not name.endswith(LARGE):
            return None
        sha256 = self.declared_sha256.get(name) or file_sha256(self.folder / name)
        return {"sha256": sha256, "size": self.size(name), "pointerSize": 134}

    def size(self, name: str) -> int:
        return self.declared_bytes.get(name) or (self.folder / name).stat().st_size

    def etag(self, name: str) -> str:
        lfs = self.lfs(name)
        return lfs["sha256"] if lfs else git_blob_sha1(self.folder / name)


class Hub:
    """Serves while it is entered; `requests` has the requested paths."""

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def cdn(self) -> str:
        """Large files come from another host, as on the real Hub."""
        return f"http://localhost:{self._server.server_address[1]}/cdn"

    def __enter__(self) -> "Hub":
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(path)
            parts = path.strip("/").split("/")
            kind = "datasets/" if "datasets" in parts[:2] else ""
            if kind or parts[:2] == ["api", "models"]:
                parts = [part for part in parts if part not in ("models", "datasets")]
            match parts:
                case ["api", owner, name, "revision" | "tree" as asked, revision, *_]:
                    if repo := self._repo(f"{kind}{owner}/{name}", revision):
                        self._json(_info(repo, f"{owner}/{name}") if asked == "revision" else _tree(repo))
                case [owner, name, "resolve", revision, *rest]:
                    if repo := self._repo(f"{kind}{owner}/{name}", revision):
                        self._file(repo, "/".join(rest))
                case ["cdn", owner, name, *rest]:
                    self._send(200, (hub.repos[f"{kind}{owner}/{name}"].folder / "/".join(rest)).read_bytes())
                case _:
                    self._send(404, b"")

        def _repo(self, name: str, revision: str) -> Repo | None:
            repo = hub.repos.get(name)
            if repo is None:
                self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
                return None
            if repo.refuses:
                self._send(repo.refuses[0], b"", {"X-Error-Message": repo.refuses[1]})
                return None
            if revision not in (repo.commit, repo.branch):
                self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
                return None
            return repo

        def _file(self, repo: Repo, name: str) -> None:
            if repo.gated:
                code = 403 if self.headers.get("Authorization") else 401
                self._send(code, b"", {"X-Error-Code": "GatedRepo"})
            elif name not in repo.names():
                self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.commit})
            elif repo.lfs(name):
                owner_and_name = next(key for key, value in hub.repos.items() if value is repo)
                linked = {"X-Linked-Size": str(repo.size(name)), "X-Linked-Etag": f'"{repo.etag(name)}"'}
                where = {"Location": f"{hub.cdn}/{owner_and_name}/{name}", "X-Repo-Commit": repo.commit}
                self._send(302, b"", linked | where)
            else:
                data = (repo.folder / name).read_bytes()
                self._send(200, data, {"ETag": f'"{repo.etag(name)}"', "X-Repo-Commit": repo.commit})

        def _json(self, value: Any) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    return Handler


def _info(repo: Repo, name: str) -> dict[str, Any]:
    files = [
        {"rfilename": n, "size": repo.size(n), "blobId": git_blob_sha1(repo.folder / n)}
        | ({"lfs": repo.lfs(n)} if repo.lfs(n) else {})
        for n in repo.names()
    ]
    return {"id": name, "sha": repo.commit, "gated": "auto" if repo.gated else False, "siblings": files}


def _tree(repo: Repo) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": name, "size": repo.size(name), "oid": repo.etag(name)}
        | ({"lfs": {"oid": lfs["sha256"], **lfs}} if (lfs := repo.lfs(name)) else {})
        for name in repo.names()
    ]


def commit_of(text: str) -> str:
    """Some full commit."""
    return hashlib.sha1(text.encode()).hexdigest()
