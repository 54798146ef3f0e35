"""An exception keeps its type, its contents and where it was raised on its way from a worker to the trainer."""

import pickle
import threading

import pytest
from user_code.faulty import BrokenLever, Wordless

from collectx.errors import RemoteFailure, WorkerError, summary_of, text_of


def travelled(error: BaseException, *, is_json: bool = False) -> BaseException:
    """What the trainer gets of an exception raised in a worker: pickled, or as plain data as between hosts."""

    def deep_inside():
        raise error

    try:
        deep_inside()
    except BaseException as caught:
        failure = RemoteFailure.of(caught)
    arrived = RemoteFailure.from_json(failure.to_json()) if is_json else pickle.loads(pickle.dumps(failure))
    return arrived.rebuild("worker 3 (log: somewhere)")


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class NeedsNames(Exception):
    """Pickles, but cannot be unpickled: pickle knows of no arguments."""

    def __init__(self, *, code):
        self.code = code

    def __str__(self):
        return f"code {self.code}"


class Env:
    class Broken(Exception):
        """Of a class within another."""


class Local(Exception):
    """Can only be pickled by value, not found by its name."""


Local.__qualname__ = "test.<locals>.Local"


ERRORS = [
    BrokenLever("left", 3),
    Unpicklable("holds a lock"),
    NeedsNames(code=3),
    Env.Broken("a lever", 3),
    FileNotFoundError(2, "No such file", "map.txt"),
    OSError("without a number"),
]


@pytest.mark.parametrize(
    ("error", "is_json"),
    [*((error, is_json) for error in ERRORS for is_json in (False, True)), (Local("hidden"), False)],
)
def test_an_exception_keeps_its_type_message_attributes_and_traceback(error, is_json):
    came = travelled(error, is_json=is_json)
    assert type(came) is type(error)
    assert str(came) == str(error)
    plain = {name: value for name, value in vars(error).items() if name != "lock"}
    assert {name: value for name, value in vars(came).items() if name in plain} == plain
    assert came.__notes__[0].startswith("raised in worker 3 (log: somewhere)\nTraceback")
    assert "deep_inside" in came.__notes__[0]


def test_a_class_that_the_trainer_cannot_import_comes_back_as_text():
    failure = RemoteFailure(b"cno_such_module\nThing\n.", "no_such_module.Thing", "lost", "Traceback ...")
    error = failure.rebuild("worker 0")
    assert type(error) is WorkerError
    assert str(error) == "no_such_module.Thing: lost"


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize("text", ["3" * 30_000_000, "half of \ud83d a pair"], ids=["long", "surrogate"])
def test_a_text_that_no_file_should_hold_is_cut_and_escaped(text, is_json):
    came = travelled(ValueError(text, 3), is_json=is_json)
    assert type(came) is ValueError
    kept = [text_of(came), *came.__notes__]
    assert 10 < len("".join(kept).encode()) < 100_000
    assert len(text) < 100 or "characters left out" in kept[0]


@pytest.mark.parametrize(
    ("error", "kind"), [(Wordless(), Wordless), (SystemExit(0), WorkerError), (KeyboardInterrupt(), WorkerError)]
)
def test_one_without_words_travels_and_none_ends_the_trainer_silently(error, kind):
    assert type(travelled(error)) is kind


def test_the_summary_of_an_error_without_words_names_its_type():
    assert summary_of(Wordless()) == "Wordless: (no text: str() raised RuntimeError)"
    assert summary_of(KeyError("x")) == "KeyError: 'x'"
