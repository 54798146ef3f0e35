"""Seeds, saves, restores and swaps the global random state; makes computations independent of the number of threads."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

GENERATORS = ("torch", "numpy", "python")
# NumPy's type stubs lack `get_bit_generator` and `set_bit_generator`.
_numpy: Any = np.random


@contextlib.contextmanager
def preserve_random_state(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restores the global random generators of Python, NumPy and torch at the end of the block. `devices` are GPUs
    whose generators are restored too."""
    state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)


def drawn_seed() -> int:
    """Draws a seed from torch's global generator, as a DataLoader does."""
    return int(torch.randint(2**61, (), device="cpu"))


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Inside the block torch computes with one thread, as results of linear algebra (the QR decomposition of an
    orthogonal initialisation) may depend on the number of threads. If the block sets a number other than one, that
    number stays."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() == 1:
            torch.set_num_threads(before)


def save_generators(names: Sequence[str] = GENERATORS) -> dict[str, Any]:
    """Returns a copy of the states of torch's, NumPy's and Python's global generators, or of some of them, by name:
    tensors and plain data. "cuda" contains the states of the GPU generators, if this process has used a GPU."""
    return {name: _GENERATORS[name][0]() for name in _with_gpus(names)}


def load_generators(saved: dict[str, Any]) -> None:
    """Restores the states that `save_generators` returned."""
    for name, state in saved.items():
        _GENERATORS[name][1](state)


def seed_generators(seed: int, names: Sequence[str] = GENERATORS) -> None:
    """Seeds some of the global generators; `seed` is below 2**32. NumPy gets a new bit generator, so that the current
    one stays unchanged."""
    if "torch" in names:
        torch.manual_seed(seed)
    if "numpy" in names:
        _numpy.set_bit_generator(_marked(np.random.RandomState(seed).get_state(legacy=False)))
    if "python" in names:
        random.seed(seed)


class HeldGenerators:
    """Holds states of global generators that are not in use: a worker's while the trainer's code runs in the same
    process, or the envs' while the policy acts. Begins with copies of the current states. Includes the GPU generators
    with torch's, if this process has used a GPU before."""

    def __init__(self, names: Sequence[str] = GENERATORS):
        self._states: dict[str, Any] = {}
        self.add(names)

    @property
    def names(self) -> list[str]:
        return [*self._states]

    def add(self, names: Sequence[str]) -> None:
        """Holds the current states of more generators. NumPy's generator is held itself, until `seed_generators`
        installs a new one."""
        for name in _with_gpus(names):
            take, give = _EXCHANGED[name]
            self._states[name] = take()
            give(self._states[name])

    def swap(self) -> None:
        """Exchanges the held states with those in use. Takes 1.4 µs for torch, 3 µs for NumPy, 16 µs for Python."""
        for name, state in self._states.items():
            take, give = _EXCHANGED[name]
            self._states[name] = take()
            give(state)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, the generators use the held states."""
        self.swap()
        try:
            yield
        finally:
            self.swap()


class SeedWatch:
    """Notices if code has seeded global generators since this object was made, or since `renew`. Drawing does not
    count."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._torch_seed = torch.default_generator.initial_seed()
        if _numpy.get_bit_generator().seed_seq is None:
            _numpy.set_bit_generator(_marked(np.random.get_state(legacy=False)))
        self._python = random.getstate()

    def seeded(self) -> list[str]:
        """Returns "torch" and "numpy" if they were seeded. Takes less than 1 µs."""
        found = ["torch"] if torch.default_generator.initial_seed() != self._torch_seed else []
        # `np.random.seed` leaves no seed sequence.
        return [*found, "numpy"] if _numpy.get_bit_generator().seed_seq is None else found

    def python_seeded(self) -> list[str]:
        """Returns "python" if draws (of some thousand numbers) do not explain the state of Python's generator."""
        drawn = random.Random()
        drawn.setstate(self._python)
        *block, _ = random.getstate()[1]
        for _ in range(_MAX_BLOCKS):
            if [*drawn.getstate()[1][:-1]] == block:
                return []
            drawn.getrandbits(32 * len(block))
        return ["python"]


# How many blocks of 624 numbers an env may draw from Python's generator while it is made and reset.
_MAX_BLOCKS = 20
_MT19937_BYTES = 4 * 625


def _marked(state: Any) -> np.random.MT19937:
    bits = np.random.MT19937(0)
    bits.state = state
    return bits


def _take_numpy() -> tuple[Any, float | None]:
    """Returns NumPy's bit generator, and the normal number that it holds for the next draw, as it makes two at a time;
    None if it holds none. The caller must call `_give_numpy` next. `np.random.get_state` would take 50 µs."""
    bits: Any = _numpy.get_bit_generator()
    if not isinstance(bits, np.random.MT19937):
        state: Any = np.random.get_state(legacy=False)
        return bits, state["gauss"] if state["has_gauss"] else None
    address = bits.ctypes.state_address
    before = ctypes.string_at(address, _MT19937_BYTES)
    number = np.random.standard_normal()
    if ctypes.string_at(address, _MT19937_BYTES) == before:
        return bits, number
    ctypes.memmove(address, before, _MT19937_BYTES)
    return bits, None


def _give_numpy(taken: tuple[Any, float | None]) -> None:
    bits, number = taken
    _numpy.set_bit_generator(bits)  # forgets the second number
    if number is not None:
        state: Any = np.random.get_state(legacy=False)
        np.random.set_state(state | {"has_gauss": 1, "gauss": number})


def _with_gpus(names: Sequence[str]) -> list[str]:
    """Returns `names`, with "cuda" added to "torch" if this process has used a GPU: `torch.manual_seed` seeds both."""
    has_gpus = "torch" in names and "cuda" not in names and torch.cuda.is_initialized()
    return [*names, "cuda"] if has_gpus else [*names]


def _take_gpus() -> list[torch.Tensor]:
    return [generator.get_state() for generator in torch.cuda.default_generators]


def _give_gpus(states: list[torch.Tensor]) -> None:
    if torch.cuda.is_available():
        torch.cuda.init()
    # A checkpoint may come from a machine with other GPUs.
    for generator, state in zip(torch.cuda.default_generators, states, strict=False):
        generator.set_state(state)


_EXCHANGED: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch": (torch.default_generator.get_state, torch.default_generator.set_state),
    "numpy": (_take_numpy, _give_numpy),
    "python": (random.getstate, random.setstate),
    "cuda": (_take_gpus, _give_gpus),
}


def _numpy_state() -> tuple[Any, ...]:
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return name, torch.from_numpy(keys.view(np.int32)), *rest


def _set_numpy_state(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, keys.numpy().view(np.uint32), *rest))


_GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "numpy": (_numpy_state, _set_numpy_state),
    "python": (random.getstate, random.setstate),
    "cuda": (_take_gpus, _give_gpus),
}
