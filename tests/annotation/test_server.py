"""The annotation server over HTTP: what is refused, what is stored once, and what no response contains."""

import json
import re
import socket
import sqlite3
import threading
import zlib
from contextlib import ExitStack, closing
from html import escape
from itertools import product
from unittest.mock import Mock

import httpx2
import pytest
import yaml
from PIL import Image, PngImagePlugin

from local_bench.annotation import serve
from local_bench.annotation.app import COOKIE, MAX_BODY, csrf_token
from local_bench.annotation.protocol import FOLDER
from tests.annotation.conftest import MODELS, SCRIPT, live_server, make_shop
from tests.conftest import ROOT

PEOPLE = {"ann": "annotator", "bob": "annotator", "cleo": "annotator", "boss": "lead"}


class Client(httpx2.Client):
    """An annotator's browser, a context manager. Keeps every response."""

    def __init__(self, live, name):
        self.responses = []
        super().__init__(base_url=live.url, event_hooks={"response": [self._keep]}, follow_redirects=True, timeout=30)
        self.token = live.tokens[name]
        self.headers["X-CSRF-Token"] = csrf_token(self.token)

    def __enter__(self):
        super().__enter__()
        self.get(f"/a/{self.token}")
        return self

    def _keep(self, response):
        response.read()
        self.responses.append(response)

    def queue(self, n=1):
        return self.get("/queue", params={"n": n}).json()

    def answer(self, item, value=True, request_id=None, **more):
        keys = sorted(set(re.findall(r'class="for" data-key="(\d*)"', item["html"])))
        body = {
            "request_id": request_id or f"{len(self.responses):032x}",
            "item_id": item["item_id"],
            "kind": item["kind"],
            "values": {key: {"overall": value} for key in keys},
            "left": item["left"],
        }
        return self.post("/answer", json=body | more)


def test_links_are_printed_once_connections_are_accepted(monkeypatch):
    monkeypatch.setattr(serve, "server_of", Mock())
    with closing(serve.listening_socket("127.0.0.1", 0)) as bound:
        connect = Mock(side_effect=lambda: socket.create_connection(bound.getsockname(), timeout=5).close())
        serve.serve(Mock(), bound, Mock(), connect)
    connect.assert_called_once()


@pytest.fixture
def live(shop_run):
    with live_server(shop_run.path, "accept", PEOPLE) as live:
        yield live


@pytest.fixture
def ann(live):
    with Client(live, "ann") as client:
        yield client


def test_every_page_needs_a_link_and_the_server_s_own_name_and_has_both_languages(live):
    for path in ("/", "/queue", "/lead", "/lead.json", "/image/" + "0" * 64):
        assert httpx2.get(live.url + path).status_code == 403
    assert httpx2.post(live.url + "/answer", json={}).status_code in (403, 422)
    for path in ("/docs", "/openapi.json", "/static/", "/static/..%2fapp.py", "/static/page.html.j2", "/image/"):
        assert httpx2.get(live.url + path).status_code == 404, path
    for more in ({}, {"X-Forwarded-Host": "127.0.0.1"}, {"Forwarded": "host=127.0.0.1"}):
        headers = {"Host": "evil.example", "Accept": "text/html"} | more
        answer = httpx2.get(live.url, headers=headers, cookies={COOKIE: live.tokens["ann"]})
        assert answer.status_code == 400
        assert "The server does not know the address" in answer.text
        assert "服务器不认识您使用的地址" in answer.text
    from local_bench.annotation.app import texts

    en, zh = texts("en"), texts("zh")
    assert en.keys() == zh.keys()
    assert all(zh.values())
    of_file = yaml.safe_load((ROOT / "local_bench" / "annotation" / "text.yaml").read_text("utf-8"))
    assert {tuple(text) for text in of_file.values()} == {("en", "zh")}  # a comma outside quotes makes more keys
    assert en["k_zoom"] == "Zoom in, out, fit"
    with Client(live, "ann") as ann:
        assert ann.post("/language", json={"language": "tlh"}).json() == {"language": "en"}


def test_a_forged_token_is_refused_and_guessing_is_limited(live, ann):
    for _ in range(10):
        assert httpx2.get(f"{live.url}/a/{'x' * 43}").status_code == 403
    assert httpx2.get(f"{live.url}/a/{'x' * 43}").status_code == 429
    spoofed = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"}
    assert httpx2.get(f"{live.url}/a/{'x' * 43}", headers=spoofed).status_code == 429
    assert (
        httpx2.get(f"{live.url}/a/{live.tokens['bob']}").status_code == 303
    )  # who guesses behind a proxy stops no one
    assert ann.get("/").status_code == 200  # who is in stays in
    assert httpx2.get(live.url, cookies={COOKIE: "x" * 43}).status_code == 403


def test_a_change_needs_the_csrf_token_and_the_own_origin(live, ann):
    (item,) = ann.queue()["items"]
    good = ann.headers["X-CSRF-Token"]
    for token in ("", "0" * 64, csrf_token(live.tokens["bob"])):
        ann.headers["X-CSRF-Token"] = token
        assert ann.answer(item).status_code == 403
        assert ann.post("/undo", json={"number": 1}).status_code == 403
        other_link = ann.answer(item).json()["error"]
    assert "Another personal link was opened in this browser" in other_link
    ann.headers["X-CSRF-Token"] = good
    elsewhere = ann.post("/language", json={"language": "zh"}, headers={"Origin": "http://evil.example"})
    assert elsewhere.status_code == 403
    assert "from an address that the server does not know" in elsewhere.json()["error"]
    assert live.session.database.answers() == []
    assert ann.answer(item).status_code == 200


def test_behind_a_proxy_answers_come_from_the_page_of_base(shop_run):
    """Whether the proxy keeps the Host header or writes its own."""
    base, hosts = "https://annotate.lab.org", ("127.0.0.1", "Annotate.lab.org")
    origins = (base, "http://annotate.lab.org:81", "null", "https://evil.example")
    with live_server(shop_run.path, "accept", PEOPLE, base=base) as live, Client(live, "ann") as ann:
        assert "Secure" in ann.responses[0].headers["set-cookie"]
        ann.cookies.set(COOKIE, ann.token)  # over http, which the client would not send back
        for host, origin in product((*hosts, "evil.example"), origins):
            ann.headers.pop("Host", None)
            (item,) = ann.queue()["items"]
            ann.headers["Host"] = host
            forwarded = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "Origin": origin}
            ann.headers |= forwarded
            expected = 400 if host not in hosts else 200 if origin == base else 403
            assert ann.answer(item).status_code == expected, (host, origin)
            for name in forwarded:
                del ann.headers[name]


def test_without_base_there_is_no_other_origin(live, ann):
    assert "Secure" not in ann.responses[0].headers["set-cookie"]
    (item,) = ann.queue()["items"]
    ann.headers["Origin"] = "https://annotate.lab.org"
    assert ann.answer(item).status_code == 403
    ann.headers["Origin"] = live.url
    assert ann.answer(item).status_code == 200


LANGUAGES = {
    "zh": ("zh-CN,zh;q=0.9,en;q=0.8", "zh-Hant-TW", "fr, zh;q=0.4, en;q=0.3", ";;q=,zh;q=9"),
    "en": ("en-GB,zh;q=0.9", "de", "", "*;q=0.1", "english, zhx"),
}


def test_the_language_is_the_browser_s_until_one_is_chosen(shop_run):
    headers = {
        f"{language}-{i}": header for language, accepted in LANGUAGES.items() for i, header in enumerate(accepted)
    }
    people = dict.fromkeys(headers, "annotator")
    with live_server(shop_run.path, "pass-fail", people, language="") as live:
        for name, header in headers.items():
            with Client(live, name) as client:
                client.headers["Accept-Language"] = header
                language, other = ("zh", "en") if name.startswith("zh") else ("en", "zh")
                assert f'<html lang="{language}">' in client.get("/").text, header
                assert ("任务说明" in client.queue()["items"][0]["html"]) == (language == "zh")
                client.post("/language", json={"language": other})
                assert f'<html lang="{other}">' in client.get("/").text


def test_a_path_or_a_foreign_digest_is_no_image_and_every_response_has_the_security_headers(ann):
    for name in ("..%2f..%2frun.yaml", "../run.yaml", "0" * 64, "%00", "A" * 2):
        answer = ann.get(f"/image/{name}")
        assert (answer.status_code, b"gamma" in answer.content) == (404, False), name
    ann.queue()
    ann.get("/static/app.js")
    ann.get("/nowhere")
    for response in ann.responses:
        if response.is_redirect:
            assert "HttpOnly" in response.headers["set-cookie"]
            assert "SameSite=lax" in response.headers["set-cookie"]
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "cache-control" in response.headers


def test_images_of_the_run_only_and_without_metadata(tmp_path):
    shop = make_shop(tmp_path / "run", 2)
    sha = shop.images[MODELS[0], "print-01", 1, 1]
    file = tmp_path / "run" / "images" / sha[:2] / f"{sha}.png"
    info = PngImagePlugin.PngInfo()
    info.add_text("Software", MODELS[0])
    Image.open(file).copy().save(file, pnginfo=info)
    assert MODELS[0].encode() in file.read_bytes()
    with live_server(shop.path, "accept", PEOPLE) as live, Client(live, "ann") as ann:
        answer = ann.get(f"/image/{sha}")
        assert answer.status_code == 200
        assert MODELS[0].encode() not in answer.content
        assert answer.headers["content-type"] == "image/png"
        file.write_bytes(b"\x89PNG\r\n\x1a\n")  # damaged behind our back
        assert ann.get(f"/image/{sha}").status_code == 404


def test_a_body_of_a_megabyte_is_refused(ann):
    (item,) = ann.queue()["items"]
    assert ann.answer(item, note="x" * 1_000_000).status_code == 413
    assert ann.answer(item, note="x" * 2001).status_code == 422
    assert MAX_BODY < 1_000_000

    def endless():
        for _ in range(64):
            yield b"x" * 65536

    try:
        status = ann.post("/answer", content=endless()).status_code
    except httpx2.TransportError:  # the server has closed the connection before all was sent
        status = 413
    assert status == 413
    assert ann.answer(item, note="x" * 2000).status_code == 200


BROKEN = [
    *({"values": values} for values in ({}, {"1": {"overall": 1}}, {"1": {"overall": "yes"}})),
    *({"values": values} for values in ({"1": {"overall": True, "brf": 5}}, {"7": {"overall": True}})),
    {"cannot_tell": "other"},
    {"values": {}, "cannot_tell": "because"},
    {"reasons": ["nonsense"]},
    {"left": "a"},
    *({"kind": kind} for kind in ("adjudication", "repeat", "gold")),
    *({"item_id": item_id} for item_id in ("0" * 64, "../../x")),
    {"request_id": "'; DROP TABLE answers; --"},
    {"elapsed_ms": -1},
    {"model": "zebra-xl-9b"},
    {"note": None},
]


def test_an_answer_that_does_not_fit_is_refused_and_nothing_is_stored(live, ann):
    item = next(item for item in ann.queue(5)["items"] if item["direct"])
    for broken in BROKEN:
        assert ann.answer(item, **broken).status_code == 422, broken
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"request_id": NaN}', b"[" * 20_000):
        sent = ann.post("/answer", content=body, headers={"Content-Type": "application/json"})
        assert sent.status_code in (400, 422), body[:20]
    assert live.session.database.answers() == []


def test_a_replayed_request_is_stored_once_and_a_stale_page_is_reported(live, ann):
    (item,) = ann.queue()["items"]
    assert ann.answer(item, True, "a" * 32).json() == {"saved": "a" * 32}
    assert ann.answer(item, True, "a" * 32).json() == {"saved": "a" * 32}
    stale = ann.answer(item, False, "b" * 32)
    assert stale.status_code == 409
    assert "already answered" in stale.json()["error"]
    (stored,) = live.session.database.answers()
    assert all(values == {"overall": True} for values in stored.given.values.values())


def test_two_annotators_on_the_same_item_at_once_and_one_twice(live):
    """Each one's answer is stored once, from twenty requests at the same time."""
    clients = [Client(live, name) for name in ("ann", "bob")]
    with clients[0]:
        item = clients[0].queue()["items"][0]
    statuses = []
    barrier = threading.Barrier(20)

    def send(client, number):
        body = {"request_id": f"{number:032x}", "item_id": item["item_id"], "kind": "answer"}
        keys = re.findall(r'class="for" data-key="(\d+)"', item["html"])
        body |= {"values": {key: {"overall": bool(number % 2)} for key in keys}}
        cookies, headers = {COOKIE: client.token}, {"X-CSRF-Token": csrf_token(client.token)}
        barrier.wait()
        statuses.append(httpx2.post(f"{live.url}/answer", json=body, cookies=cookies, headers=headers).status_code)

    threads = [threading.Thread(target=send, args=(clients[i % 2], i)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 200] + [409] * 18
    assert sorted(one.annotator for one in live.session.database.answers()) == ["ann", "bob"]


def test_undo_withdraws_the_latest_answer_once(live, ann):
    (first,) = ann.queue()["items"]
    sent = {"value": True, "request_id": "a" * 32, "note": "hello", "reasons": ["artefacts"]}
    ann.answer(first, **sent, elapsed_ms=1200)
    (stored,) = live.session.database.answers()
    assert (stored.elapsed_ms, stored.kind, stored.given.note) == (1200, "answer", "hello")
    last = ann.queue()["last"]
    assert ann.post("/undo", json={"number": last + 1}).status_code == 409
    undone = ann.post("/undo", json={"number": last}).json()
    assert undone["item_id"] == first["item_id"]
    assert (undone["given"]["note"], undone["given"]["reasons"]) == ("hello", ["artefacts"])
    assert ann.post("/undo", json={"number": last}).status_code == 409  # a copy of the undo
    assert ann.answer(first, **sent).status_code == 200  # a late copy of the withdrawn answer
    assert live.session.database.answers() == []
    assert ann.answer(first, False, "c" * 32).status_code == 200
    with Client(live, "bob") as bob:
        assert bob.post("/undo", json={"number": ann.queue()["last"]}).status_code == 409
    assert len(live.session.database.answers()) == 1


def test_a_lab_can_hide_the_evaluation_points(shop_run, tmp_path):
    text = (FOLDER / "accept.yaml").read_text()
    hidden = tmp_path / "blind.yaml"
    hidden.write_text(text.replace("id: accept", "id: blind\nshow_points: false"))
    for protocol, shown in (("accept", True), (str(hidden), False)):
        with (
            live_server(shop_run.path, protocol, {protocol[-9:]: "annotator"}) as live,
            Client(live, protocol[-9:]) as ann,
        ):
            (item,) = ann.queue()["items"]
            assert ("Evaluation points" in item["html"]) is shown


def test_script_in_a_brief_is_text(tmp_path):
    shop = make_shop(tmp_path / "run", 3, brief=SCRIPT)
    with live_server(shop.path, "accept", PEOPLE) as live, Client(live, "ann") as ann:
        for item in ann.queue(5)["items"]:
            assert "<script>" not in item["html"]
            assert "&lt;script&gt;" in item["html"]
            assert 'onerror="' not in item["html"]


def test_the_image_that_is_judged_is_named_among_those_of_its_task(shop_run):
    named = set()
    with live_server(shop_run.path, "pass-fail", PEOPLE) as live, Client(live, "ann") as ann:
        while found := ann.queue()["items"]:
            item = live.session.queue.by_id[found[0]["item_id"]]
            lines, at = live.session.tasks[item.task_id].deliverables, item.images[0].deliverable
            bold = re.findall("<strong>(.*?)</strong>", found[0]["html"])
            which = f"Image {at} of {len(lines)}"
            assert bold == ([f"{which}: {escape(lines[at - 1])}", which] if len(lines) > 1 else [])
            named |= {which} if bold else set()
            assert ann.answer(found[0]).status_code == 200
    assert {"Image 1 of 2", "Image 2 of 2"} <= named


def test_images_of_a_set_have_their_own_numbers_where_some_are_not_shown(tmp_path):
    """The first image of every set was not made."""
    shop = make_shop(tmp_path / "run", 24, models=MODELS[:1])
    with closing(sqlite3.connect(shop.path / "ledger.sqlite")) as ledger, ledger:
        ledger.execute(
            "UPDATE candidates SET state = 'unscored', unscored = 'no memory', pixels_sha256 = NULL, identity = NULL "
            "WHERE deliverable = 1 AND task_id IN (SELECT task_id FROM candidates WHERE deliverable = 3)"
        )
    seen = 0
    with live_server(shop.path, "accept", PEOPLE) as live, Client(live, "ann") as ann:
        while found := ann.queue()["items"]:
            numbers = [image.deliverable for image in live.session.queue.by_id[found[0]["item_id"]].images]
            if len(numbers) > 1:
                n = len(live.session.tasks[live.session.queue.by_id[found[0]["item_id"]].task_id].deliverables)
                shown = re.findall(r"<span>Image (\d) of (\d)</span>", found[0]["html"])
                assert shown == [(str(number), str(n)) for number in numbers]
                seen += numbers[0] == 2
            assert ann.answer(found[0]).status_code == 200
    assert seen


@pytest.mark.parametrize("protocol", ["accept", "pass-fail", "pass-fail-criteria", "scores", "points", "pairwise"])
def test_no_response_names_a_model_or_a_cost(shop_run, protocol):
    """Bodies, headers and URLs, of pages, fragments, images and errors; of annotators and of the lead."""
    with live_server(shop_run.path, protocol, PEOPLE, repeats=0.2) as live, ExitStack() as stack:
        clients = [stack.enter_context(Client(live, name)) for name in PEOPLE]
        for client in clients:
            for path in ("/", "/queue?n=5", "/lead", "/lead.json", "/nowhere", "/static/app.js"):
                client.get(path)
        for item in clients[0].queue(5)["items"]:
            assert ">Answer after all</button>" in item["html"]  # `clear` is also a method of the texts
            for sha in set(re.findall(r"/image/([0-9a-f]{64})", item["html"])):
                assert clients[0].get(f"/image/{sha}").status_code == 200
            clients[0].post("/answer", json={"request_id": "zz"})
        everything = [response for client in clients for response in client.responses]
        assert len(everything) > 30
        for response in everything:
            content = response.content
            if response.headers.get("content-type") == "image/png":
                content += zlib.decompress(b"".join(_chunks(content)))
            seen = content + str(response.url).encode() + json.dumps(dict(response.headers)).encode()
            for secret in (*MODELS, "zebra", "quagga", "micro_usd", "price", "usd_per"):
                assert secret.encode() not in seen.lower(), (response.url, secret)


def _chunks(png):
    at = 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        if kind == b"IDAT":
            yield png[at + 8 : at + 8 + length]
        assert kind in (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS")
        at += 12 + length
