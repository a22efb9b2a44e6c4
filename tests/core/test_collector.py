"""Objects made at import are left out of collections; what becomes unreachable is still freed."""

import gc
import sys
import weakref
from types import ModuleType

from local_bench.core import environment


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_collect_frees_cycles_and_skips_objects_of_new_modules(monkeypatch):
    freezes = []
    monkeypatch.setattr(environment, "_modules", 0)
    monkeypatch.setattr(gc, "freeze", lambda: freezes.append(len(sys.modules)))
    left = cycle()
    environment.collect()
    assert left() is None
    environment.collect()
    assert len(freezes) == 1  # no module since
    monkeypatch.setitem(sys.modules, "a_module_of_this_test", ModuleType("a_module_of_this_test"))
    environment.collect()
    assert len(freezes) == 2


def test_collection_is_paused_and_resumed():
    assert gc.isenabled()
    with environment.paused():
        assert not gc.isenabled()
        with environment.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
