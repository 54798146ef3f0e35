"""Ways in which an env may keep its state, each as a small class: `ShapeEnv(name)` steps the one of this name.

A shape returns a number from `begin(rng)`, in a reset, and from `advance(action)`, in a step; the number depends on all
of its state. Those of `NAMED` cannot be pickled.
"""

from __future__ import annotations

import array
import collections
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import io
import itertools
import operator
import random
import sys
import threading
import types
import weakref
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from user_code import sharing

EPISODE = 23


class ShapeEnv(gymnasium.Env):
    """Observes the number, the sum of the numbers of the episode and the number of the step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, name: str):
        self.shape = shapes()[name]()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.total = 0, 0.0
        return self._observe(self.shape.begin(self.np_random)), {}

    def step(self, action):
        self.steps += 1
        observation = self._observe(self.shape.advance(int(action)))
        return observation, observation[0], self.steps == EPISODE, False, {}

    def close(self):
        if isinstance(self.shape, OpenFile):
            self.shape.file.close()

    def _observe(self, number):
        self.total += float(number)
        return np.array([float(number), self.total, self.steps])


class Shape:
    def begin(self, rng) -> Any:
        return 0

    def advance(self, action) -> Any:
        raise NotImplementedError


def shapes() -> dict[str, type[Shape]]:
    """All shapes by the names of their classes."""
    return {each.__name__: each for each in Shape.__subclasses__()}


# Constants that the current value was, when the episode began.
class ListConstant(Shape):
    def __init__(self):
        self.start = [0, 0]

    def begin(self, rng):
        self.pos = self.start
        return sum(self.pos)

    def advance(self, action):
        self.pos = [self.pos[0] + action, self.pos[1] + 1]
        return 10 * self.pos[0] + sum(self.start)


class ArrayConstant(Shape):
    def __init__(self):
        self.start = np.array([1.0, 2.0])

    def begin(self, rng):
        self.pos = self.start
        return self.pos.sum()

    def advance(self, action):
        self.pos = self.pos + action + 1
        return self.pos.sum() - 3 * self.start.sum()


class DictConstant(Shape):
    def __init__(self):
        self.start = {"x": 1, "y": 2}

    def begin(self, rng):
        self.pos = self.start
        return self.pos["x"]

    def advance(self, action):
        self.pos = {**self.pos, "x": self.pos["x"] + 1 + action}
        return self.pos["x"] + 100 * self.start["x"]


class TensorConstant(Shape):
    def __init__(self):
        self.start = torch.tensor([1.0, 2.0])

    def begin(self, rng):
        self.pos = self.start
        return self.pos.sum()

    def advance(self, action):
        self.pos = self.pos + 1 + action
        return self.pos.sum() - 3 * self.start.sum()


class ConstantsInATable(Shape):
    def __init__(self):
        self.rooms = [[0, 1], [5, 3], [9, 2]]

    def begin(self, rng):
        self.index, self.room = 0, self.rooms[0]
        return sum(self.room)

    def advance(self, action):
        self.index = (self.index + 1 + action) % 3
        self.room = self.rooms[self.index]
        return sum(self.room) + 10 * sum(map(sum, self.rooms))


class SwappedArrays(Shape):
    def begin(self, rng):
        self.front, self.back = np.zeros(3), np.ones(3)
        return 0

    def advance(self, action):
        self.front, self.back = self.back, self.front
        self.front += self.back + action
        return self.front.sum() - 2 * self.back.sum()


class SwappedLists(Shape):
    def begin(self, rng):
        self.both = [[0], [1]]
        return 0

    def advance(self, action):
        self.both.reverse()
        self.both[0].append(self.both[1][-1] + action)
        return sum(self.both[0]) - sum(self.both[1]) % 7


_START = [3, 4]


class ModuleConstant(Shape):
    def begin(self, rng):
        self.pos = _START
        return sum(self.pos)

    def advance(self, action):
        self.pos = [each + action + 1 for each in self.pos]
        return sum(self.pos) + 100 * sum(_START)


# Objects of another class.
class _Walk:
    speed = 1

    def __init__(self):
        self.time = 0


class _Run(_Walk):
    speed = 3


class _Slotted:
    __slots__ = ("time",)
    speed = 5

    def __init__(self):
        self.time = 0


class ClassOfAnAttribute(Shape):
    def begin(self, rng):
        self.mode = _Walk()
        return 0

    def advance(self, action):
        if action:
            self.mode = _Run() if isinstance(self.mode, _Walk) and not isinstance(self.mode, _Run) else _Walk()
        self.mode.time += self.mode.speed
        return self.mode.time


class ClassAssigned(Shape):
    def begin(self, rng):
        self.mode = _Walk()
        return 0

    def advance(self, action):
        self.mode.__class__ = _Run if action else _Walk
        self.mode.time += self.mode.speed
        return self.mode.time


class ClassesInAList(Shape):
    def begin(self, rng):
        self.modes = [_Walk(), _Run()]
        return 0

    def advance(self, action):
        self.modes.append((_Walk, _Run, _Slotted)[(len(self.modes) + action) % 3]())
        self.modes = self.modes[-4:]
        for mode in self.modes:
            mode.time += mode.speed
        return sum(mode.time for mode in self.modes)


class NoneOrAnObject(Shape):
    def begin(self, rng):
        self.held = None
        return 0

    def advance(self, action):
        self.held = (_Run() if self.held is None else None) if action else self.held
        if self.held is not None:
            self.held.time += 2
        return -1 if self.held is None else self.held.time


class AClassItself(Shape):
    def begin(self, rng):
        self.make = _Walk
        return 0

    def advance(self, action):
        self.make = (_Walk, _Run)[action]
        return self.make().speed


class ChangingTypes(Shape):
    def begin(self, rng):
        self.value = 0
        return 0

    def advance(self, action):
        self.value = [self.number() + 1 + action] if isinstance(self.value, int) else self.number() + 1
        return self.number()

    def number(self):
        return self.value if isinstance(self.value, int) else self.value[0]


# Functions.
def _counter(start):
    count = start

    def add(amount):
        nonlocal count
        count += amount
        return count

    return add


def _both(start):
    count = start

    def add(amount):
        nonlocal count
        count += amount

    def read():
        return count

    return add, read


def _slow(x):
    return x + 1


def _fast(x):
    return x + 3


def _add(values, amount):
    values.append(sum(values[-2:]) % 101 + amount)
    return values[-1]


class Closure(Shape):
    def begin(self, rng):
        self.add = _counter(int(rng.integers(9)))
        return 0

    def advance(self, action):
        return self.add(1 + action)


class ClosuresOfOneVariable(Shape):
    def begin(self, rng):
        self.add, self.read = _both(0)
        return 0

    def advance(self, action):
        self.add(1 + action)
        return self.read()


class RecursiveClosure(Shape):
    def begin(self, rng):
        limit = int(rng.integers(5))

        def count(n):
            return 0 if n <= limit else 1 + count(n - 1)

        self.count, self.n = count, 0
        return limit

    def advance(self, action):
        self.n += 1 + action
        return self.count(self.n)


class LambdaOverAList(Shape):
    def begin(self, rng):
        seen = self.seen = [0]
        self.read = lambda: sum(seen)
        return 0

    def advance(self, action):
        self.seen.append(1 + action)
        return self.read()


class LambdaOverTheObject(Shape):
    def begin(self, rng):
        self.count = 0
        self.read = lambda: self.count
        return 0

    def advance(self, action):
        self.count += 1 + action
        return self.read()


class FunctionByName(Shape):
    def begin(self, rng):
        self.move, self.pos = _slow, 0
        return 0

    def advance(self, action):
        self.pos = self.move(self.pos)
        self.move = (_slow, _fast)[action]
        return self.pos


class Partial(Shape):
    def begin(self, rng):
        self.add = functools.partial(_add, [1])
        return 0

    def advance(self, action):
        return self.add(action)


class PartialReplaced(Shape):
    def begin(self, rng):
        self.move, self.pos = functools.partial(operator.add, 1), 0
        return 0

    def advance(self, action):
        self.pos = self.move(self.pos) % 50
        self.move = functools.partial((operator.add, operator.mul)[action], 2)
        return self.pos


class BoundMethod(Shape):
    def begin(self, rng):
        self.mode, self.pos = self.left, 0
        return 0

    def left(self):
        self.pos -= 1

    def right(self):
        self.pos += 2

    def advance(self, action):
        self.mode()
        self.mode = (self.left, self.right)[action]
        return self.pos


class MethodOfAnObject(Shape):
    def begin(self, rng):
        self.values = []
        self.append = self.values.append
        return 0

    def advance(self, action):
        self.append(1 + action)
        return sum(self.values)


class MutableDefault(Shape):
    def begin(self, rng):
        def add(amount, seen=[0]):  # noqa: B006
            seen.append(amount)
            return sum(seen)

        self.add = add
        return 0

    def advance(self, action):
        return self.add(1 + action)


class AttributeOfAFunction(Shape):
    def begin(self, rng):
        def add(amount):
            return amount

        add.count = 0
        self.add = add
        return 0

    def advance(self, action):
        self.add.count += self.add(1 + action)
        return self.add.count


class LocalClass(Shape):
    def begin(self, rng):
        start = int(rng.integers(5))

        class Local:
            def __init__(self):
                super().__init__()
                self.count = start

            def add(self, amount):
                self.count += amount + start
                return self.count

        self.part = Local()
        return start

    def advance(self, action):
        return self.part.add(1 + action)


class LocalDataclass(Shape):
    def begin(self, rng):
        @dataclasses.dataclass
        class Local:
            count: int = 0

        self.part = Local()
        return 0

    def advance(self, action):
        self.part = dataclasses.replace(self.part, count=self.part.count + 1 + action)
        return self.part.count


class DecoratedFunction(Shape):
    def begin(self, rng):
        calls = self.calls = []

        @functools.wraps(_slow)
        def counted(x):
            calls.append(x)
            return _slow(x) + len(calls)

        self.move, self.pos = counted, 0
        return 0

    def advance(self, action):
        self.pos = self.move(self.pos % 50) + action
        return self.pos + len(self.calls)


# Random generators.
class OwnGenerator(Shape):
    def begin(self, rng):
        self.random = rng
        return rng.normal()

    def advance(self, action):
        return self.random.normal() + action


def _numpys(kind):
    class Numpys(Shape):
        def __init__(self):
            self.random = np.random.Generator(getattr(np.random, kind)(5))

        def advance(self, action):
            return self.random.normal() + self.random.integers(5)

    Numpys.__name__ = Numpys.__qualname__ = kind
    return Numpys


PCG64, PCG64DXSM, MT19937, Philox, SFC64 = map(_numpys, ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"))


class RandomState(Shape):
    def __init__(self):
        self.random = np.random.RandomState(3)

    def advance(self, action):
        return self.random.randn()


class PythonsRandom(Shape):
    def __init__(self):
        self.random = random.Random(3)

    def advance(self, action):
        return self.random.gauss(0, 1)


class TorchGenerator(Shape):
    def __init__(self):
        self.random = torch.Generator().manual_seed(3)

    def advance(self, action):
        return torch.rand((), generator=self.random)


class GlobalGenerators(Shape):
    def advance(self, action):
        return random.random() + np.random.rand() + torch.rand(())


class GeneratorOfTwo(Shape):
    def __init__(self):
        self.random = np.random.default_rng(3)
        self.parts = [types.SimpleNamespace(random=self.random) for _ in range(2)]

    def advance(self, action):
        return self.parts[action].random.normal() + 10 * self.random.normal()


class TwoGeneratorsOfOneSource(Shape):
    def __init__(self):
        source = np.random.PCG64(3)
        self.first, self.second = np.random.Generator(source), np.random.Generator(source)

    def advance(self, action):
        return self.first.normal() + 10 * self.second.normal()


class GeneratorReplaced(Shape):
    def begin(self, rng):
        self.random = np.random.default_rng(3)
        return 0

    def advance(self, action):
        if action:
            self.random = random.Random(self.random.random())
        return self.random.random()


class SampledSpace(Shape):
    def __init__(self):
        self.space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(9), b=gymnasium.spaces.Box(0, 1, (2,)))
        self.space.seed(3)

    def advance(self, action):
        sample = self.space.sample()
        return sample["a"] + sample["b"].sum()


# Containers.
class Counter(Shape):
    def begin(self, rng):
        self.seen = collections.Counter()
        return 0

    def advance(self, action):
        self.seen[action] += 1
        return self.seen["absent"] + self.seen.most_common(1)[0][1]


class DefaultDict(Shape):
    def begin(self, rng):
        self.seen = collections.defaultdict(list)
        return 0

    def advance(self, action):
        self.seen[len(self.seen) if action else 0].append(1)
        return len(self.seen) + len(self.seen[0])


class DefaultDictOfALambda(Shape):
    def begin(self, rng):
        start = int(rng.integers(9))
        self.seen = collections.defaultdict(lambda: start)
        return start

    def advance(self, action):
        self.seen[len(self.seen) * action] += 1
        return sum(self.seen.values())


class OrderedDict(Shape):
    def begin(self, rng):
        self.queue = collections.OrderedDict.fromkeys(range(5), 0)
        return 0

    def advance(self, action):
        first = next(iter(self.queue))
        self.queue[first] += 1
        self.queue.move_to_end(first, last=bool(action))
        return 10 * next(iter(self.queue)) + self.queue[first]


class DictOrder(Shape):
    def begin(self, rng):
        self.queue = dict.fromkeys(range(5), 0)
        return 0

    def advance(self, action):
        first = next(iter(self.queue))
        self.queue[first] = self.queue.pop(first) + 1
        return 10 * next(iter(self.queue)) + self.queue[first]


class DequeOfThree(Shape):
    def begin(self, rng):
        self.seen = collections.deque(maxlen=3)
        return 0

    def advance(self, action):
        self.seen.append(action + 1)
        return sum(self.seen) + 10 * self.seen.maxlen


class DequeReplaced(Shape):
    def begin(self, rng):
        self.seen = None
        return 0

    def advance(self, action):
        self.seen = collections.deque([*(self.seen or ()), action + 1], maxlen=2 + len(self.seen or ()) % 3)
        return sum(self.seen) + 10 * self.seen.maxlen


class ChainMap(Shape):
    def begin(self, rng):
        self.scopes = collections.ChainMap({"x": 1})
        return 0

    def advance(self, action):
        self.scopes = self.scopes.new_child({"x": self.scopes["x"] + action}) if action else self.scopes
        self.scopes["y"] = self.scopes.get("y", 0) + 1
        return self.scopes["x"] + 100 * self.scopes["y"]


class Heap(Shape):
    def begin(self, rng):
        self.heap = [(1, "a"), (2, "b")]
        return 0

    def advance(self, action):
        time, name = heapq.heappop(self.heap)
        heapq.heappush(self.heap, (time + 1 + action, name))
        return time


class Sets(Shape):
    def begin(self, rng):
        self.seen, self.frozen = set(), frozenset()
        return 0

    def advance(self, action):
        self.seen.add((len(self.seen) + action) % 11)
        self.frozen |= {len(self.frozen) + action}
        return sum(self.seen) + 100 * sum(self.frozen)


class KeysOfObjects(Shape):
    def begin(self, rng):
        self.one, self.two = _Walk(), _Run()
        self.counts = {self.one: 0, self.two: 0}
        return 0

    def advance(self, action):
        self.counts[(self.one, self.two)[action]] += 1
        return self.counts[self.one] + 100 * self.counts[self.two]


class _NamedList(list):
    pass


class _NamedDict(dict):
    def __missing__(self, key):
        return 7


class ListWithAttributes(Shape):
    def begin(self, rng):
        self.seen = _NamedList([1])
        self.seen.sum = 1
        return 0

    def advance(self, action):
        self.seen.append(action)
        self.seen.sum += action + 1
        return self.seen.sum + 100 * len(self.seen)


class DictWithAttributes(Shape):
    def begin(self, rng):
        self.seen = _NamedDict()
        self.seen.count = 0
        return 0

    def advance(self, action):
        self.seen.count += 1
        self.seen[self.seen.count] = action
        return self.seen["absent"] + self.seen.count + 100 * sum(self.seen.values())


class _Number(float):
    pass


class NumberWithAttributes(Shape):
    def begin(self, rng):
        self.at = _Number(0)
        self.at.scale = 1
        return 0

    def advance(self, action):
        scale, self.at = self.at.scale + action, _Number(self.at + self.at.scale)
        self.at.scale = scale
        return self.at


class UserDict(Shape):
    def begin(self, rng):
        self.seen = collections.UserDict(a=0)
        return 0

    def advance(self, action):
        self.seen["a"] += 1 + action
        return self.seen["a"]


class BytesAndArrays(Shape):
    def begin(self, rng):
        self.bytes, self.array, self.text = bytearray(b"\1"), array.array("i", [1]), b""
        return 0

    def advance(self, action):
        self.bytes.append(action + 1)
        self.array.append(action)
        self.text += bytes([action])
        return sum(self.bytes) + 100 * sum(self.array) + sum(self.text)


class Iterators(Shape):
    def begin(self, rng):
        self.plan = [3, 1, 4, 1, 5] * 20
        self.next, self.count, self.cycle = iter(self.plan), itertools.count(5, 2), itertools.cycle([1, 2, 3])
        return 0

    def advance(self, action):
        self.plan[50 + action] += 1
        return next(self.next) + 10 * next(self.count) + 1000 * next(self.cycle)


class ZippedIterators(Shape):
    def begin(self, rng):
        self.next = enumerate(zip(range(1000), reversed(range(500)), strict=False))
        return 0

    def advance(self, action):
        number, (one, two) = next(self.next)
        return number + one + 3 * two


class Namespace(Shape):
    def begin(self, rng):
        self.at = types.SimpleNamespace(x=0)
        return 0

    def advance(self, action):
        self.at.x += 1 + action
        setattr(self.at, f"y{action}", self.at.x)
        return self.at.x + 100 * len(vars(self.at))


class _Point(collections.namedtuple("_Point", "x y")):
    __slots__ = ()


class NamedTuple(Shape):
    def begin(self, rng):
        self.at = _Point(0, 0)
        return 0

    def advance(self, action):
        self.at = self.at._replace(x=self.at.x + 1, y=self.at.y + action)
        return self.at.x + 100 * self.at.y


@dataclasses.dataclass(frozen=True)
class _Frozen:
    x: int = 0
    seen: list = dataclasses.field(default_factory=list)


class FrozenDataclass(Shape):
    def begin(self, rng):
        self.at = _Frozen()
        return 0

    def advance(self, action):
        self.at = dataclasses.replace(self.at, x=self.at.x + action)
        self.at.seen.append(1)
        return self.at.x + 100 * len(self.at.seen)


class TupleOfLists(Shape):
    def begin(self, rng):
        self.lists = ([], [])
        return 0

    def advance(self, action):
        self.lists[action].append(1)
        return len(self.lists[0]) + 100 * len(self.lists[1])


class _Phase(enum.Enum):
    DAY = 1
    NIGHT = 2


class _Flag(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = enum.auto()


class Enum(Shape):
    def begin(self, rng):
        self.phase = _Phase.DAY
        return 0

    def advance(self, action):
        self.phase = _Phase.NIGHT if (self.phase is _Phase.DAY) == bool(action) else _Phase.DAY
        return self.phase.value


class EnumFlags(Shape):
    def begin(self, rng):
        self.flags = _Flag(0)
        return 0

    def advance(self, action):
        self.flags ^= (_Flag.A | _Flag.B) if action else _Flag.C
        return self.flags.value + 10 * (_Flag.A in self.flags)


class EnumAndKeys(Shape):
    def begin(self, rng):
        self.counts = dict.fromkeys(_Phase, 0)
        return 0

    def advance(self, action):
        self.counts[(_Phase.DAY, _Phase.NIGHT)[action]] += 1
        return self.counts[_Phase.DAY] + 100 * self.counts[_Phase.NIGHT]


class Numbers(Shape):
    def begin(self, rng):
        self.complex, self.fraction, self.decimal = 1j, fractions.Fraction(1, 3), decimal.Decimal("0.1")
        self.big, self.date = 3**200, datetime.datetime(2000, 1, 1)
        return 0

    def advance(self, action):
        self.complex *= 1j + action / 10
        self.fraction += fractions.Fraction(1, 7)
        self.decimal += decimal.Decimal("0.1")
        self.big = self.big * 3 % 7**150
        self.date += datetime.timedelta(hours=5 + action)
        numbers = self.complex.real, self.fraction, self.decimal, self.big % 1009, self.date.hour
        return sum(map(float, numbers))


class HugeInteger(Shape):
    def begin(self, rng):
        self.value = 10**5000
        return 0

    def advance(self, action):
        self.value += 1 + action
        return self.value % 1009


class TextFile(Shape):
    def begin(self, rng):
        self.file = io.StringIO("123456789" * 20)
        return 0

    def advance(self, action):
        return int(self.file.read(1 + action))


# Arrays and tensors.
class Views(Shape):
    def begin(self, rng):
        self.grid = np.zeros((3, 4))
        self.row, self.column = self.grid[1], self.grid[:, 2]
        return 0

    def advance(self, action):
        self.row += 1
        self.column[action] += 5
        return self.grid.sum() + 100 * self.row.sum()


class ViewsWithoutTheWhole(Shape):
    def begin(self, rng):
        grid = np.zeros(10)
        self.left, self.right = grid[:6], grid[4:]
        return 0

    def advance(self, action):
        self.left += 1
        self.right[action] += 2
        return self.left.sum() + 100 * self.right.sum()


class TurnedViews(Shape):
    def begin(self, rng):
        self.grid = np.zeros((3, 4))
        self.turned, self.flipped = self.grid.T, self.grid[::-1, ::2]
        return 0

    def advance(self, action):
        self.turned[1] += 1
        self.flipped[0, action] += 3
        return self.grid[2].sum() + 100 * self.grid[:, 1].sum()


class ViewsOfFortranOrder(Shape):
    def begin(self, rng):
        self.grid = np.zeros((3, 4), order="F")
        self.row = self.grid[1]
        return 0

    def advance(self, action):
        self.row[action] += 1
        return self.grid[:, 0].sum() + 10 * self.grid[:, 1].sum()


class ViewsOfAnotherDtype(Shape):
    def begin(self, rng):
        self.words = np.zeros(2, np.int32)
        self.bytes = self.words.view(np.uint8)
        return 0

    def advance(self, action):
        self.bytes[4 * action] += 1
        return self.words[0] + 10 * self.words[1]


class ArrayInTwoPlaces(Shape):
    def begin(self, rng):
        self.at = np.zeros(2)
        self.seen = [self.at, {"at": self.at}]
        return 0

    def advance(self, action):
        self.at += 1 + action
        return self.seen[0].sum() + self.seen[1]["at"].sum()


class ArrayGrows(Shape):
    def begin(self, rng):
        self.seen = np.zeros(1)
        return 0

    def advance(self, action):
        self.seen = np.append(self.seen, 1 + action)
        return self.seen.sum() + self.seen.dtype.itemsize * len(self.seen)


class StructuredArray(Shape):
    def begin(self, rng):
        self.at = np.zeros(2, [("x", "f8"), ("n", "i4")])
        return 0

    def advance(self, action):
        self.at["x"][action] += 0.5
        self.at["n"] += 1
        return self.at["x"].sum() + 100 * self.at["n"].sum()


class ArrayOfObjects(Shape):
    def begin(self, rng):
        self.cells = np.array([None] * 6, object).reshape(2, 3)
        return 0

    def advance(self, action):
        self.cells[action, 1] = [1, *(self.cells[action, 1] or ())]
        return sum(len(cell or ()) for cell in self.cells.flat)


class MaskedArray(Shape):
    def begin(self, rng):
        self.cells = np.ma.array(np.arange(6.0), mask=[0] * 6)
        return 0

    def advance(self, action):
        index = int(self.cells.count()) % 6
        self.cells[index] = np.ma.masked
        self.cells[(index + 1 + action) % 6] = index
        return self.cells.sum() + 100 * self.cells.count()


class _Grid(np.ndarray):
    pass


class ArrayWithAttributes(Shape):
    def begin(self, rng):
        self.grid = np.zeros(3).view(_Grid)
        self.grid.count = 0
        return 0

    def advance(self, action):
        self.grid.count += 1
        self.grid += action
        return self.grid.sum() + 100 * self.grid.count


class NumpyScalars(Shape):
    def begin(self, rng):
        self.at, self.count = np.float32(0), np.int8(100)
        return 0

    def advance(self, action):
        with np.errstate(over="ignore"):
            self.count = np.int8(self.count + np.int8(1 + action)) if self.count < 120 else np.int8(-100)
        self.at += np.float32(0.1)
        return self.at + self.count


class TensorViews(Shape):
    def begin(self, rng):
        self.grid = torch.zeros(3, 4)
        self.row = self.grid[1]
        return 0

    def advance(self, action):
        self.row[action] += 1
        return self.grid[:, 0].sum() + 10 * self.grid[:, 1].sum()


class TensorsWithoutElements(Shape):
    def begin(self, rng):
        self.seen = torch.zeros(0)
        return 0

    def advance(self, action):
        self.seen = torch.zeros(0) if len(self.seen) == 3 else torch.cat([self.seen, torch.ones(1) + action])
        return self.seen.sum()


class TensorOverAnArray(Shape):
    def begin(self, rng):
        self.array = np.zeros(3)
        self.tensor = torch.from_numpy(self.array)
        return 0

    def advance(self, action):
        self.tensor += 1
        self.array[action] += 1
        return self.array.sum() + 100 * float(self.tensor[0])


class ArrayOverATensor(Shape):
    def begin(self, rng):
        self.tensor = torch.zeros(4)
        self.array = self.tensor.numpy()[1:]
        return 0

    def advance(self, action):
        self.tensor += 1
        self.array[action] += 1
        return self.array.sum() + 100 * float(self.tensor.sum())


class Module(Shape):
    def __init__(self):
        self.module = torch.nn.Linear(2, 1).double()
        torch.nn.init.constant_(self.module.weight, 0.5)
        torch.nn.init.constant_(self.module.bias, 0.25)

    def begin(self, rng):
        return 0

    @torch.no_grad()
    def advance(self, action):
        self.module.bias += action + 1
        return self.module(torch.ones(2, dtype=torch.float64))


# Objects.
class Slots(Shape):
    __slots__ = ("absent", "at")

    def begin(self, rng):
        self.at = 0
        return 0

    def advance(self, action):
        self.at += 1 + action
        if action:
            self.absent = self.at
        elif hasattr(self, "absent"):
            del self.absent
        return self.at + 100 * hasattr(self, "absent")


class SlotsReplaced(Shape):
    def begin(self, rng):
        self.part = _Slotted()
        return 0

    def advance(self, action):
        time, self.part = self.part.time, _Slotted()
        self.part.time = time + 1 + action
        return self.part.time


class Properties(Shape):
    @property
    def at(self):
        return self._at

    @at.setter
    def at(self, value):
        self._at = value
        self.count = getattr(self, "count", 0) + 1

    def begin(self, rng):
        self.at = 0
        return 0

    def advance(self, action):
        self.at += 1 + action
        return self.at + 100 * self.count


class CachedProperty(Shape):
    @functools.cached_property
    def size(self):
        return self.at

    def begin(self, rng):
        self.at = 0
        self.__dict__.pop("size", None)
        return 0

    def advance(self, action):
        self.at += 1 + action
        return self.size + 100 * self.at


class DeletedAttribute(Shape):
    def begin(self, rng):
        self.held = 1
        return 0

    def advance(self, action):
        if action and hasattr(self, "held"):
            del self.held
        elif action:
            self.held = 5
        return getattr(self, "held", -1)


class DeletedKey(Shape):
    def begin(self, rng):
        self.held = {"a": 1}
        return 0

    def advance(self, action):
        if action and not self.held.pop("a", 0):
            self.held["a"] = 5
        return self.held.get("a", -1)


class _Node:
    def __init__(self, value, following):
        self.value, self.following = value, following


class LinkedList(Shape):
    def begin(self, rng):
        self.head = None
        for value in range(5000):
            self.head = _Node(value, self.head)
        return 0

    def advance(self, action):
        for _ in range(1 + action):
            self.head = self.head.following
        return self.head.value


class Ring(Shape):
    def begin(self, rng):
        nodes = [_Node(value, None) for value in range(7)]
        for one, two in itertools.pairwise([*nodes, nodes[0]]):
            one.following = two
        self.at = nodes[0]
        return 0

    def advance(self, action):
        self.at = self.at.following
        self.at.value += action
        return self.at.value


class ParentAndChild(Shape):
    def begin(self, rng):
        self.parent = types.SimpleNamespace(count=0)
        self.parent.child = types.SimpleNamespace(parent=self.parent)
        return 0

    def advance(self, action):
        self.parent.child.parent.count += 1 + action
        return self.parent.count


class SharedChild(Shape):
    def begin(self, rng):
        self.one = self.two = _Walk()
        return 0

    def advance(self, action):
        self.one.time += 1
        if action:
            self.one = _Walk()
            self.one.time = self.two.time
            self.two = self.one
        return self.two.time


class OwnGetstate(Shape):
    def __init__(self):
        self.cache = None

    def __getstate__(self):
        return {"at": self.at}

    def __setstate__(self, state):
        self.at, self.cache = state["at"], None

    def begin(self, rng):
        self.at = 0
        return 0

    def advance(self, action):
        self.at += 1 + action
        self.cache = self.cache or [1]
        return self.at


class _Reduced:
    def __init__(self, count):
        self.count = count

    def __reduce__(self):
        return _Reduced, (self.count,)


class OwnReduce(Shape):
    def begin(self, rng):
        self.part = _Reduced(0)
        return 0

    def advance(self, action):
        self.part.count += 1 + action
        return self.part.count


class _Registered:
    def __init__(self):
        self.count = 0


def _registered(count):
    value = _Registered()
    value.count = count
    return value


copyreg.pickle(_Registered, lambda value: (_registered, (value.count,)))


class RegisteredReduce(Shape):
    def begin(self, rng):
        self.part = _Registered()
        return 0

    def advance(self, action):
        self.part.count += 1 + action
        return self.part.count


class MadeByItsArguments(gymnasium.utils.EzPickle, Shape):
    """Gymnasium pickles its arguments only."""

    def __init__(self, start=3):
        gymnasium.utils.EzPickle.__init__(self, start)
        self.at = self.start = start

    def begin(self, rng):
        self.at = self.start
        return 0

    def advance(self, action):
        self.at += 1 + action
        return self.at


class _Forwarding:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


class Forwarding(Shape):
    def begin(self, rng):
        self.part = _Forwarding(types.SimpleNamespace(count=[0]))
        return 0

    def advance(self, action):
        self.part.count[0] += 1 + action
        return self.part.count[0]


class PrivateNames(Shape):
    def begin(self, rng):
        self.__at = 0
        return 0

    def advance(self, action):
        self.__at += 1 + action
        return self.__at


# Weak references.
class WeakReference(Shape):
    def begin(self, rng):
        self.parts = [_Walk(), _Run()]
        self.chosen = weakref.ref(self.parts[0])
        return 0

    def advance(self, action):
        self.chosen().time += 1
        self.chosen = weakref.ref(self.parts[action])
        return self.chosen().time


class DeadReference(Shape):
    def begin(self, rng):
        self.chosen, self.held = weakref.ref(_Walk()), 0
        return 0

    def advance(self, action):
        self.held += 1 + action
        return self.held + 100 * (self.chosen() is None)


class WeakProxy(Shape):
    def begin(self, rng):
        self.part = _Walk()
        self.proxy = weakref.proxy(self.part)
        return 0

    def advance(self, action):
        self.proxy.time += 1 + action
        return self.part.time


class WeakKeys(Shape):
    def begin(self, rng):
        self.part = _Walk()
        self.names = weakref.WeakKeyDictionary({self.part: 1})
        return 0

    def advance(self, action):
        self.names[self.part] += 1
        if action:
            self.part = _Run()
            self.names[self.part] = 5
        return self.names[self.part] + 100 * len(self.names)


class WeakValues(Shape):
    def begin(self, rng):
        self.part = _Walk()
        self.names = weakref.WeakValueDictionary({"part": self.part})
        return 0

    def advance(self, action):
        self.names["part"].time += 1 + action
        return self.part.time


class WeakMembers(Shape):
    def begin(self, rng):
        self.part = _Walk()
        self.seen = weakref.WeakSet([self.part])
        return 0

    def advance(self, action):
        self.part.time += 1 + action
        return sum(part.time for part in self.seen)


# State of the module and of the class.
_calls = 0
_seen: list[int] = []
_NOTHING = object()


class ModuleNumber(Shape):
    def advance(self, action):
        global _calls
        _calls += 1 + action
        return _calls


class ModuleList(Shape):
    def __init__(self):
        self.seen = _seen

    def advance(self, action):
        self.seen.append(action)
        return sum(_seen) + 100 * len(_seen)


class ClassNumber(Shape):
    count = 0

    def advance(self, action):
        type(self).count += 1 + action
        return self.count


class ClassDict(Shape):
    seen: ClassVar[dict[int, int]] = {}

    def advance(self, action):
        self.seen[action] = self.seen.get(action, 0) + 1
        return self.seen.get(0, 0) + 100 * self.seen.get(1, 0)


class BaseClassData(Shape, sharing.Common):
    def advance(self, action):
        self.drawn.append(action + self.rng.random())
        return sum(self.drawn) + self.space.sample()


class ClassSpace(Shape):
    space = gymnasium.spaces.Box(0, 9, (2,), np.float32, seed=3)

    def advance(self, action):
        return self.space.sample().sum() + action


class MetaclassData(Shape, metaclass=sharing.Counting):
    def advance(self, action):
        sharing.Counting.count += 1 + action
        return type(self).count


class ObjectOfAnotherModule(Shape):
    clock = sharing.Clock()

    def advance(self, action):
        return self.clock.tick(1 + action)


class FunctionOfAnotherModule(Shape):
    def advance(self, action):
        return sharing.called(1 + action)


class ClassWithoutObjects(Shape):
    def advance(self, action):
        sharing.Registry.Names.used += 1 + action
        return sharing.Registry.Names.used


_generator: np.random.Generator | None = None


class ModuleNoneOrAnObject(Shape):
    def begin(self, rng):
        return 0

    def advance(self, action):
        global _generator
        _generator = None if _generator and action else _generator or np.random.default_rng(3)
        return _generator.random() if _generator else 0


class Sentinel(Shape):
    def begin(self, rng):
        self.held = _NOTHING
        return 0

    def advance(self, action):
        self.held = _NOTHING if action else self.held if self.held is _NOTHING else 3
        return 1 if self.held is _NOTHING else 2


class SentinelLater(Shape):
    def begin(self, rng):
        self.held, self.count = 1, 0
        return 0

    def advance(self, action):
        self.count += 1
        self.held = _NOTHING if self.count % 4 else 1
        return self.count + 100 * (self.held is _NOTHING)


# What cannot be pickled.
def _numbers():
    value = 0
    while True:
        value += 1
        yield value


class Generator(Shape):
    def begin(self, rng):
        self.next = _numbers()
        return 0

    def advance(self, action):
        return next(self.next)


class OpenFile(Shape):
    def __init__(self):
        self.file = open(__file__)  # noqa: SIM115

    def advance(self, action):
        return len(self.file.read(1 + action))


class Thread(Shape):
    def __init__(self):
        self.thread = threading.Thread(target=print)

    def advance(self, action):
        return 0


class Lock(Shape):
    def __init__(self):
        self.lock = threading.Lock()

    def advance(self, action):
        return 0


class MemoryView(Shape):
    def __init__(self):
        self.bytes = bytearray(3)
        self.view = memoryview(self.bytes)

    def advance(self, action):
        self.view[action] += 1
        return sum(self.bytes)


class SystemRandom(Shape):
    def __init__(self):
        self.random = random.SystemRandom()

    def advance(self, action):
        return 0


class SharedMemory(Shape):
    def __init__(self):
        self.tensor = torch.zeros(2).share_memory_()

    def advance(self, action):
        self.tensor += 1
        return self.tensor.sum()


class WeakCallback(Shape):
    def __init__(self):
        self.part, self.dead = _Walk(), []
        self.chosen = weakref.ref(self.part, self.dead.append)

    def advance(self, action):
        return len(self.dead)


NAMED = ("Generator", "OpenFile", "Thread", "Lock", "MemoryView", "SystemRandom", "SharedMemory", "WeakCallback")
# From Python 3.14 on, the iterators of itertools cannot be pickled.
NAMED += ("Iterators",) if sys.version_info >= (3, 14) else ()
