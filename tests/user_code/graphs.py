"""Objects of a module of users whose state refers to one another in many ways."""

import weakref

from gymnasium.utils import EzPickle


class Slots:
    __slots__ = ("__weakref__", "left", "right")

    def __init__(self, left):
        self.left = left


class Eager(EzPickle):
    """Made anew by its constructor, it would lose what it has since."""

    def __init__(self, size=3):
        EzPickle.__init__(self, size)
        self.size = size


def scaled(value, by=2, *, plus=1):
    return value * by + plus


def closures(count):
    """Two functions that share a variable, and one with a variable of its own."""

    def more(by: int = 1) -> int:
        """Adds."""
        nonlocal count
        count += by
        return count

    more.calls = ["none"]
    return more, lambda: count, lambda factor=3: factor * 2


def references():
    """Returns references to a live object and to one that is gone, and references by keys and values."""
    kept, gone = Slots([1]), Slots(None)
    found = {
        "kept": kept,
        "to kept": weakref.ref(kept),
        "to gone": weakref.ref(gone),
        "proxy": weakref.proxy(kept),
        "by key": weakref.WeakKeyDictionary({kept: "key"}),
        "by value": weakref.WeakValueDictionary({"value": kept}),
    }
    del gone
    return found
