import random

from local_bench.judges.vlm.pipe import CACHE_SIZE, Recent


def test_both_ends_forget_the_same_images():
    """The sender sends what it believes the other does not hold; the other must then never miss one."""
    rng = random.Random(0)
    here, there = Recent[None](), Recent[str]()
    names = [f"{i}" for i in range(3 * CACHE_SIZE)]
    sent = 0
    for _ in range(4000):
        asked = [rng.choice(names[: rng.choice((20, len(names)))]) for _ in range(rng.randint(1, 9))]
        come = {}
        for name in asked:
            here.use(name, lambda name=name, come=come: come.setdefault(name))
        sent += len(come)
        assert [there.use(name, lambda name=name, come=come: come.pop(name) or name) for name in asked] == asked
        assert not come
    assert CACHE_SIZE < sent < 4000 * 5


def test_what_was_used_last_is_kept():
    held = Recent[int]()
    for i in range(CACHE_SIZE):
        held.use(str(i), lambda i=i: i)
    held.use("0", lambda: -1)
    held.use("new", lambda: CACHE_SIZE)
    assert held.use("0", lambda: -1) == 0
    assert held.use("1", lambda: -1) == -1
