"""The gate lets in as many as it says; the tuner finds a window that serves well, whatever the server is like."""

import asyncio
import math
import random

import pytest

from local_bench.judges.vlm.concurrency_limit import FIRST, LEAST, MOST, Limiter, Tuner


def test_never_more_are_inside_than_the_limit_and_all_come_in():
    async def go():
        gate, inside, most, entered = Limiter(3), 0, 0, 0

        async def enter(i):
            nonlocal inside, most, entered
            async with gate:
                inside += 1
                entered += 1
                most = max(most, inside)
                await asyncio.sleep(0.001 * (i % 4))
                inside -= 1

        await asyncio.wait_for(asyncio.gather(*(enter(i) for i in range(40))), 10)
        return most, entered, gate.inside

    assert asyncio.run(go()) == (3, 40, 0)


class Room:
    """Visitors who stay until they are let go."""

    def __init__(self, limit, visitors):
        self.gate = Limiter(limit)
        self.doors = [asyncio.Event() for _ in range(visitors)]
        self.inside = []
        self.visits = [asyncio.create_task(self._visit(i)) for i in range(visitors)]

    async def _visit(self, i):
        async with self.gate:
            self.inside.append(i)
            await self.doors[i].wait()
            self.inside.remove(i)

    async def let_go(self, n):
        for i in self.inside[:n]:
            self.doors[i].set()
        await settled()


async def settled():
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_higher_limit_lets_in_those_who_wait_at_once():
    async def go():
        room = Room(2, 10)
        await settled()
        assert len(room.inside) == 2
        await room.gate.set(7)
        await settled()
        assert len(room.inside) == 7
        await room.let_go(7)
        assert len(room.inside) == 3  # nobody was forgotten
        await room.let_go(3)
        await asyncio.wait_for(asyncio.gather(*room.visits), 10)

    asyncio.run(go())


def test_a_lower_limit_sends_nobody_out_and_lets_nobody_in_until_there_is_room():
    async def go():
        room = Room(6, 12)
        await settled()
        await room.gate.set(2)
        await settled()
        assert len(room.inside) == 6
        await room.let_go(3)
        assert len(room.inside) == 3  # one above the limit still: none came after those who left
        await room.let_go(2)
        assert len(room.inside) == 2
        for _ in range(20):
            await room.let_go(1)
            assert len(room.inside) <= 2
        await asyncio.wait_for(asyncio.gather(*room.visits), 10)

    asyncio.run(go())


def test_one_who_fails_inside_leaves_the_place_to_another():
    async def go():
        gate = Limiter(1)
        with pytest.raises(ZeroDivisionError):
            async with gate:
                _ = 1 / 0
        async with asyncio.timeout(5):
            async with gate:
                assert gate.inside == 1

    asyncio.run(go())


def peaked(peak, sharpness=0.5):
    """Replies a second of a server that serves best at `peak`: 0.87 of it at a window half or twice as wide or so."""
    return lambda window: math.exp(-sharpness * math.log(window / peak) ** 2)


def windows(rate, looks, noise=0.0, seed=0, waiting=lambda window: 0.0):
    """Each window that the tuner chose, from the first."""
    tuner, rng, seen = Tuner(), random.Random(seed), [FIRST]
    for _ in range(looks):
        seen.append(tuner.update(rate(tuner.limit) * (1 + rng.gauss(0, noise)), waiting(tuner.limit)))
    return seen


@pytest.mark.parametrize("peak", [8, 16, 32, 96, 200, 400])
@pytest.mark.parametrize("noise", [0, 0.03])
def test_it_finds_the_peak_and_stays_near_it(peak, noise):
    for seed in range(10):
        late = windows(peaked(peak), 200, noise, seed)[30:]
        near = [window for window in late if peak / 1.6 <= window <= peak * 1.6]
        assert len(near) >= 0.75 * len(late), (seed, late)  # elsewhere only to look whether it is better there
        assert max(late.count(window) for window in near) > max(
            [late.count(window) for window in late if window not in near], default=0
        )


def test_it_gets_nearly_all_that_the_server_can_give():
    for peak in (8, 32, 96, 400):
        rate = peaked(peak)
        late = windows(rate, 200, 0.03, 1)[30:]
        assert sum(map(rate, late)) / len(late) > 0.9


def test_a_server_that_changes_is_followed():
    tuner = Tuner()
    for _ in range(100):
        tuner.update(peaked(200)(tuner.limit), 0)
    assert 125 <= tuner.limit <= 320
    for _ in range(100):
        tuner.update(peaked(16)(tuner.limit), 0)
    assert 10 <= tuner.limit <= 26


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_does_not_send_it_to_the_bounds(seed):
    seen = windows(peaked(40), 400, 0.03, seed)
    assert min(seen) > LEAST
    assert max(seen) < MOST


@pytest.mark.parametrize("seed", range(20))
def test_nor_where_every_window_serves_alike(seed):
    seen = windows(lambda window: 1, 100, 0.03, seed)
    assert min(seen) > LEAST
    assert max(seen) < MOST


def test_a_wider_window_that_gives_nothing_is_not_kept():
    seen = windows(lambda window: min(window, FIRST) / FIRST, 100)
    assert set(seen) == {FIRST, int(FIRST * 1.5), int(FIRST / 1.5)}
    assert seen.count(FIRST) > 70


def test_a_full_queue_shrinks_the_window_whatever_the_rate_says():
    tuner = Tuner(limit=200)
    assert tuner.update(1000, 120) == 140
    assert tuner.update(2000, 100) == 90
    assert tuner.update(3000, 40) == 90  # a short queue is none


def test_a_server_that_takes_no_more_than_so_many_is_not_flooded():
    """Its queue holds what is beyond 24, and its rate is the same for every window from there on."""
    seen = windows(lambda window: min(window, 24), 300, 0.03, 3, waiting=lambda window: max(0, window - 24))
    assert max(seen) <= 24 * 3  # a look beyond, and back
    assert sorted(seen)[len(seen) // 2] <= 24 * 2


@pytest.mark.parametrize("rate", [lambda window: window**2, lambda window: 1 / window**2])
def test_the_bounds_hold(rate):
    seen = windows(rate, 300)
    assert min(seen) >= LEAST
    assert max(seen) <= MOST
    assert LEAST in seen or MOST in seen


def test_the_bounds_hold_under_an_endless_queue():
    tuner = Tuner()
    assert [tuner.update(1, 10_000) for _ in range(3)] == [LEAST] * 3
