"""A print shop's run with drawn images, so that the right answer to each is known, and a live annotation server."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

from examples.miniature.printshop.sampling import render
from local_bench.annotation.exchange import open_session
from local_bench.annotation.protocol import Answer, load_protocol
from local_bench.annotation.serve import address_of, listening_socket, server_of
from local_bench.annotation.session import add_people
from local_bench.core.images import store_image
from local_bench.core.types import Score, digest
from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.suites.printshop import shop
from local_bench.suites.registry import suite

CARDS = {"zebra-xl-9b": "tiny-flux", "quagga-turbo": "tiny-sd3"}
MODELS = tuple(CARDS)
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@dataclass
class Shop:
    """A run, and which of its images are right."""

    path: object
    right: dict[str, bool] = field(default_factory=dict)
    """Pixel digest -> whether the image is what was ordered."""
    images: dict[tuple[str, str, int, int], str] = field(default_factory=dict)
    """(model, task, deliverable, attempt) -> pixel digest."""


def make_shop(path, n_tasks=12, models=MODELS, attempts=1, seed=5, brief=None):
    """Each image is drawn as ordered, or as another client ordered; the judge is right about all but every seventh."""
    made = Shop(path)
    config = RunConfig(
        name="shop",
        suite={"name": "printshop", "limit": n_tasks},
        models=[ModelConfig(card=CARDS[model], name=model, attempts=attempts) for model in models],
        judge=JudgeConfig(card="tiny-qwen3-vl"),
        metrics=[],
        acceptance={"brf": 4.5},
    )
    rng = np.random.default_rng(seed)
    with RunDir.begin(path, config) as run, run.store.transaction():
        tasks = suite("printshop").tasks(None, lambda image: store_image(run.inputs, image))[:n_tasks]
        scenes = {task.task_id: shop.truth(task) for task in tasks}
        everything = [scene for of in scenes.values() for scene in of]
        position = 0
        for at, task in enumerate(tasks):
            content = dict(task.content, **({"brief": brief} if brief else {}))
            row = (task.task_id, at, task.category, task.price_micro_usd, json.dumps(content), None)
            run.store.write("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)", *row)
            for model in models:
                for attempt in range(1, attempts + 1):
                    for i, scene in enumerate(scenes[task.task_id], 1):
                        good = bool(rng.random() < 0.6)
                        others = [one for one in everything if one != scene]
                        drawn_scene = scene if good else others[int(rng.integers(len(others)))]
                        sha = store_image(run.path / "images", Image.fromarray(render(drawn_scene, rng)))
                        work = {"task": task.task_id, "deliverable": i, "model": model, "attempt": attempt}
                        position += 1
                        run.store.write(
                            "INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?, ?, ?, 7, 64, 64, 'done', ?, ?, NULL, 4,"
                            " NULL, NULL)",
                            *(digest(work), position, task.task_id, i, model, attempt, "prompt", json.dumps(work)),
                            *(digest({"work": work}), sha),
                        )
                        made.right[sha] = good
                        made.images[model, task.task_id, i, attempt] = sha
        run.store.set_meta("planned", "1")
        run.store.set_meta("judges", json.dumps({digest({"judge": 1}): "gamma"}))
    with RunDir.begin(path, config) as run:
        rows = run.store.candidates()
        judged = {row.work_id: made.right[row.image] ^ (k % 7 == 0) for k, row in enumerate(rows)}
        run.store.enter_scores("judge", [(w, Score("brf", 5.0 if good else 1.0)) for w, good in judged.items()])
        run.store.enter_decisions((w, int(good), None, 0) for w, good in sorted(judged.items()))
    return made


@pytest.fixture
def shop_run(tmp_path):
    return make_shop(tmp_path / "shop")


@dataclass
class Live:
    """A running server."""

    url: str
    session: object
    tokens: dict[str, str]

    def link(self, name):
        return f"{self.url}/a/{self.tokens[name]}"


@contextmanager
def live_server(path, protocol, people, repeats=0.0, base=None, language="en", **more):
    """Serve the annotation of a run from a thread."""
    with RunDir.open(path) as run:
        session = open_session([run], load_protocol(protocol), repeats=repeats, **more)
        with session.database:
            tokens = add_people(session.database, people, language)
            for one in session.database.annotators():
                session.queue.add(one.name, one.role)
            bound = listening_socket("127.0.0.1", 0)
            server = server_of(session, address_of(bound, "127.0.0.1", base))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
            thread.start()
            while not server.started:
                time.sleep(0.01)
            try:
                yield Live(f"http://127.0.0.1:{bound.getsockname()[1]}", session, tokens)
            finally:
                server.should_exit = True
                thread.join(timeout=20)
                bound.close()


def answer_all(path, protocol, people, value, **more):
    """Everyone's complete queue, through the session; `value(name, item, field, key)` answers."""
    with RunDir.open(path) as run:
        session = open_session([run], load_protocol(protocol), repeats=0, **more)
        with session.database as database:
            add_people(database, people, "en")
            for one in database.annotators():
                session.queue.add(one.name, one.role)
            for one in database.annotators():
                while found := session.queue.next(one.name):
                    ((item, kind),) = found
                    values = {
                        key: {field.name: value(one.name, item, field.name, key) for field in session.fields(item)}
                        for key in session.keys(item)
                    }
                    left = session.queue.left_side(one.name, item.item_id, kind)
                    request = f"{one.name}-{item.item_id}-{kind}"
                    session.answer(one, request, item.item_id, kind, Answer(values, left=left), 1000)
