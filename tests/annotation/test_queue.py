"""Which item comes next: order, assignment, repeats, adjudication and sides."""

from collections import Counter
from itertools import pairwise

import pytest

from local_bench.annotation.protocol import Answer, Item, ItemImage, load_protocol
from local_bench.annotation.session import CLAIM_S, COUNT_EVERY_S, REPEAT_GAP, Queue

YES, NO = Answer({"1": {"overall": True}}), Answer({"1": {"overall": False}})
CANNOT = Answer({}, cannot_tell="other")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def items_of(n, protocol="accept", pair=False):
    other = (ItemImage(1, "f" * 64),) if pair else ()
    return [Item(protocol, f"task-{i}", (ItemImage(1, f"{i:064x}"),), other) for i in range(n)]


def queue_of(n=40, protocol="accept", people=("a", "b", "c"), repeats=0.0, **roles):
    clock = Clock()
    loaded = load_protocol(protocol)
    queue = Queue(loaded, items_of(n, protocol, loaded.shows == "pair"), 3, repeats, clock)
    for name in people:
        queue.add(name, roles.get(name, "annotator"))
    return queue, clock


def drain(queue, name, given=YES):
    """The annotator's complete queue, answered one item after the other."""
    seen = []
    while found := queue.next(name):
        ((item, kind),) = found
        queue.record(name, item.item_id, kind, given)
        seen.append((item.item_id, kind))
    return seen


def test_everyone_has_an_own_interleaved_order_that_a_restart_preserves():
    orders = []
    for _ in range(2):
        queue, _ = queue_of(protocol="pass-fail")
        orders.append({name: [item for item, _ in drain(queue, name)] for name in "abc"})
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders[0].values()}) == 3
    assert all(len(set(order)) == 40 for order in orders[0].values())
    # few items follow the one that is before them in the plan
    queue, _ = queue_of(n=400, protocol="pass-fail", people=("a",))
    numbers = [queue.by_id[item].task_id for item, _ in drain(queue, "a")]
    follows = sum(int(y[5:]) - int(x[5:]) == 1 for x, y in pairwise(numbers))
    assert follows < 12


def test_added_items_change_neither_the_order_nor_the_repeats_of_the_others():
    """A run that has grown: the earlier items come in the same order, and the same ones are repeated."""
    before, after = (queue_of(n, "pass-fail", "a", repeats=0.2)[0] for n in (40, 60))
    known = before.by_id.keys()
    kinds = [[(i, kind) for i, kind in drain(queue, "a") if i in known] for queue in (before, after)]
    for kind in ("answer", "repeat"):
        first, second = ([i for i, of in seen if of == kind] for seen in kinds)
        assert first == second
    assert 0 < sum(kind == "repeat" for _, kind in kinds[0]) < 20


def test_the_repeat_of_a_pair_has_the_other_side_than_its_answer():
    """Also if the side was assigned among other items, before the run had grown."""
    queue, _ = queue_of(1, "pairwise", "a", repeats=0.5)
    (item,) = queue.items
    for left, right in ("ab", "ba"):
        queue.record("a", item.item_id, "answer", Answer({"": {"preferred": "tie"}}, left=left))
        assert queue.left_side("a", item.item_id, "repeat") == right


def test_an_item_is_answered_by_the_protocol_s_number_of_raters():
    queue, _ = queue_of(people=("a", "b", "c"))
    seen = Counter()
    more = True
    while more:
        more = False
        for name in "abc":
            for item, kind in queue.next(name):
                assert kind == "answer"
                queue.record(name, item.item_id, kind, YES)
                seen[item.item_id] += 1
                more = True
    assert set(seen.values()) == {2}
    assert queue.coverage() == {2: 40}
    assert not queue.may_follow("a")


def test_a_displayed_item_is_reserved_for_a_while_and_an_undone_answer_opens_it_again():
    queue, clock = queue_of(n=1)
    assert queue.next("a")
    assert queue.next("b")
    assert queue.next("c") == []
    assert queue.may_follow("c")
    assert queue.on_screen() == {"a": 1, "b": 1}
    clock.now = CLAIM_S + 1
    assert queue.next("c")
    assert queue.next("a") != []  # the same two places are free again
    queue, clock = queue_of(n=1)
    item = queue.items[0].item_id
    for name in "ab":
        queue.record(name, item, "answer", YES)
    assert queue.next("c") == []
    queue.record("a", item, "answer", None)
    assert queue.next("c") == [(queue.items[0], "answer")]
    clock.now += COUNT_EVERY_S + 1
    assert queue.progress("a").done == 0


def test_repeats_come_later_reserve_no_place_and_are_of_answered_items_only():
    queue, _ = queue_of(n=200, protocol="pass-fail", people=("a",), repeats=0.2)
    seen = drain(queue, "a")
    repeats = [item for item, kind in seen if kind == "repeat"]
    assert 20 < len(repeats) < 60
    for item in repeats:
        first, again = seen.index((item, "answer")), seen.index((item, "repeat"))
        assert again > first
        assert again - first >= REPEAT_GAP or again > 200  # shorter at the end of the queue
    # the annotator of a repeat has answered the item and counts once
    queue, _ = queue_of(n=3, people=("a", "b"), repeats=1.0)
    for _ in range(3):
        ((item, kind),) = queue.next("a")
        queue.record("a", item.item_id, kind, YES)
    assert [kind for _, kind in queue.next("a", 3)] == ["repeat"] * 3
    assert [kind for _, kind in queue.next("b", 3)] == ["answer"] * 3
    queue, _ = queue_of(n=60, repeats=0.5)
    for name in "ab":
        drain(queue, name)
    assert drain(queue, "c") == []
    assert queue.progress("c").left == 0


def test_a_disagreement_goes_to_a_third_or_an_adjudicator_and_agreement_to_none():
    queue, _ = queue_of(n=1)
    item = queue.items[0].item_id
    queue.record("a", item, "answer", YES)
    assert queue.disputed() == []
    queue.record("b", item, "answer", NO)
    assert [one.item_id for one in queue.disputed()] == [item]
    assert queue.next("a") == queue.next("b") == []
    assert queue.next("c") == [(queue.items[0], "adjudication")]
    assert not queue.may_answer("a", item, "adjudication")
    queue.record("c", item, "adjudication", NO)
    assert queue.disputed() == []
    for given in (YES, NO, CANNOT):
        queue, _ = queue_of(n=1)
        for name in "ab":
            queue.record(name, queue.items[0].item_id, "answer", given)
        assert queue.disputed() == []
    queue, _ = queue_of(n=3, people=("a", "b", "c", "judge"), judge="adjudicator")
    assert queue.next("judge") == []
    item = queue.items[1].item_id
    queue.record("a", item, "answer", YES)
    queue.record("b", item, "answer", CANNOT)
    assert queue.next("judge") == [(queue.items[1], "adjudication")]
    assert all(kind == "answer" for _, kind in queue.next("c", 5))
    assert not queue.may_answer("judge", queue.items[0].item_id, "answer")


@pytest.mark.parametrize("n", [40, 41])
def test_sides_are_balanced_within_an_annotator_and_swapped_in_repeats(n):
    queue, _ = queue_of(n=n, protocol="pairwise")
    for name in "abc":
        sides = [queue.left_side(name, item.item_id, "answer") for item in queue.items]
        assert abs(sides.count("a") - sides.count("b")) <= 1
        order = [item.item_id for item, _ in queue.next(name, n)]
        in_order = [queue.left_side(name, item_id, "answer") for item_id in order]
        assert len(order) == n
        assert any(x == y for x, y in pairwise(in_order))  # not simply alternating
        for item in queue.items:
            assert queue.left_side(name, item.item_id, "repeat") != queue.left_side(name, item.item_id, "answer")
