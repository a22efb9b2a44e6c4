import random

from local_bench.judges.vlm.protocols import SENT_IMAGES, Recent


def test_both_ends_evict_the_same_images():
    """The sender sends what it assumes that the receiver lacks; the receiver must then never miss one."""
    rng = random.Random(0)
    sender, receiver = Recent[None](), Recent[str]()
    names = [f"{i}" for i in range(3 * SENT_IMAGES)]
    sent = 0
    for _ in range(4000):
        used = [rng.choice(names[: rng.choice((20, len(names)))]) for _ in range(rng.randint(1, 9))]
        received = {}
        for name in used:
            sender.use(name, lambda name=name, received=received: received.setdefault(name))
        sent += len(received)
        assert [
            receiver.use(name, lambda name=name, received=received: received.pop(name) or name) for name in used
        ] == used
        assert not received
    assert SENT_IMAGES < sent < 4000 * 5


def test_the_most_recently_used_entries_stay():
    recent = Recent[int]()
    for i in range(SENT_IMAGES):
        recent.use(str(i), lambda i=i: i)
    recent.use("0", lambda: -1)
    recent.use("new", lambda: SENT_IMAGES)
    assert recent.use("0", lambda: -1) == 0
    assert recent.use("1", lambda: -1) == -1
