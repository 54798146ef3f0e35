"""An exception survives the way from a worker to the trainer: its type, its contents and where it was raised."""

from __future__ import annotations

import pickle

import pytest
from worlds.faulty import BrokenLever, Unpicklable

from collectx.errors import CollectxError, ConfigError, RemoteFailure, WorkerDied, WorkerError, WorkerTimeout


def deep_inside(error: BaseException):
    raise error


def travelled(error: BaseException) -> BaseException:
    """What the trainer gets of an exception raised in a worker."""
    try:
        deep_inside(error)
    except BaseException as caught:
        failure = RemoteFailure.of(caught)
    return pickle.loads(pickle.dumps(failure)).rebuild("worker 3 (log: somewhere)")


def test_a_builtin_keeps_its_type_message_and_remote_traceback():
    error = travelled(ZeroDivisionError("by zero"))
    assert type(error) is ZeroDivisionError
    assert str(error) == "by zero"
    assert error.__notes__[0].startswith("raised in worker 3 (log: somewhere)\nTraceback")
    assert "deep_inside" in error.__notes__[0]


def test_a_type_of_the_users_own_keeps_its_attributes():
    error = travelled(BrokenLever("left", 3))
    assert type(error) is BrokenLever
    assert (error.lever, error.force) == ("left", 3)
    assert "worlds.faulty.BrokenLever" in error.__notes__[0]


def test_an_unpicklable_exception_keeps_its_type_and_arguments():
    error = travelled(Unpicklable("holds a lock"))
    assert type(error) is Unpicklable
    assert str(error) == "holds a lock"
    assert "deep_inside" in error.__notes__[0]


def test_a_local_class_keeps_its_type():
    class Local(Exception):
        pass

    error = travelled(Local("hidden"))
    assert type(error) is Local
    assert str(error) == "hidden"


class NeedsTwo(Exception):
    """Pickles, but cannot be unpickled: pickle calls it with one argument."""

    def __init__(self, first, second):
        super().__init__(f"{first}{second}")
        self.first = first


class NeedsNames(Exception):
    """Has no arguments for pickle at all."""

    def __init__(self, *, code):
        super().__init__()
        self.code = code

    def __str__(self):
        return f"code {self.code}"


def test_an_exception_that_pickle_cannot_construct_keeps_its_type_message_and_attributes():
    error = travelled(NeedsTwo("a", "b"))
    assert type(error) is NeedsTwo
    assert str(error) == "ab"
    assert error.first == "a"
    error = travelled(NeedsNames(code=3))
    assert type(error) is NeedsNames
    assert str(error) == "code 3"


def test_a_class_that_the_trainer_cannot_import_comes_back_as_text():
    failure = RemoteFailure(b"cno_such_module\nThing\n.", "no_such_module.Thing", "lost", "Traceback ...")
    error = failure.rebuild("worker 0")
    assert type(error) is WorkerError
    assert str(error) == "no_such_module.Thing: lost"


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_a_worker_that_exits_never_ends_the_trainer_silently(error):
    assert isinstance(travelled(error), WorkerError)


class NoWords(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_printed_travels_all_the_same():
    assert type(travelled(NoWords())) is NoWords


def test_the_tree_of_errors():
    assert issubclass(WorkerDied, WorkerError)
    assert issubclass(WorkerTimeout, WorkerError)
    assert issubclass(WorkerError, CollectxError)
    assert ConfigError(["one", "two"]).problems == ("one", "two")
    assert str(ConfigError(["one", "two"])) == "one\ntwo"


class Env:
    class Broken(Exception):
        """Of a class within another."""


@pytest.mark.parametrize(
    "error", [Env.Broken("a lever", 3), FileNotFoundError(2, "No such file", "map.txt"), OSError("without a number")]
)
def test_as_plain_data_it_keeps_its_type_and_its_words(error):
    """As between hosts, where nothing is pickled."""
    came = RemoteFailure.from_json(RemoteFailure.of(error).to_json()).rebuild("worker 3")
    assert (type(came), str(came)) == (type(error), str(error))
