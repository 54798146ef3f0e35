"""An exception keeps its type, its contents and where it was raised on its way from a worker to the trainer."""

import bdb
import io
import json
import pdb
import pickle
import sys
import threading
from types import SimpleNamespace

import pytest
from tensordict import TensorDict
from user_code.faulty import BrokenLever, Wordless

from collectx.errors import (
    ConfigError,
    RemoteFailure,
    WorkerError,
    printable,
    set_worker,
    summary_of,
    text_of,
    traceback_of,
    worker_of,
)


def travelled(error: BaseException, *, is_json: bool = False) -> BaseException:
    """Returns what the trainer gets of a worker's exception: pickled, or as plain data as between hosts."""

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


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize("error", [ValueError("wrong"), Unpicklable("a lock"), SystemExit(2)], ids=repr)
def test_an_exception_keeps_its_notes(error, is_json):
    error.__notes__ = ["raised while making env 1 of worker 0", "half of \ud83d a pair" + 20_000 * "3"]
    came = travelled(error, is_json=is_json)
    assert came.__notes__[0] == "raised while making env 1 of worker 0"
    assert [note[:8] for note in came.__notes__[1:]] == ["half of ", "raised i"]


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
    came = travelled(error)
    assert type(came) is kind
    assert (
        kind is Wordless
        or str(came) == {SystemExit: "SystemExit: 0", KeyboardInterrupt: "KeyboardInterrupt"}[type(error)]
    )


def test_the_summary_of_an_error_without_words_names_its_type():
    assert summary_of(Wordless()) == "Wordless: (no text: str() raised RuntimeError)"
    assert summary_of(KeyError("x")) == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("key", "end"),
    [
        ("observaton", ". Did you mean 'observation'?"),
        ("obs", ". Did you mean 'observation'?"),
        ("mask", ""),
    ],
)
def test_a_key_that_a_batch_lacks_is_told_with_a_similar_one(key, end):
    with pytest.raises(KeyError) as raised:
        TensorDict(observation=1, done=0)[key]
    assert summary_of(raised.value).endswith(f"['done', 'observation']{end}")


@pytest.mark.parametrize(("name", "end"), [("pubish", ". Did you mean 'publish'?"), ("collect", "")])
def test_the_summary_of_a_missing_attribute_names_one_with_a_similar_name(name, end):
    with pytest.raises(AttributeError) as raised:
        getattr(SimpleNamespace(publish=1), name)
    assert summary_of(raised.value) == f"AttributeError: 'types.SimpleNamespace' object has no attribute '{name}'{end}"


@pytest.mark.parametrize(
    ("length", "kept"), [(0, None), (9_999, None), (10_000, None), (10_001, (5_000, 1)), (12_345, (5_000, 2_345))]
)
def test_a_long_text_is_shortened_in_its_middle(length, kept):
    text = "".join(chr(97 + index % 26) for index in range(length))
    shown = text_of(ValueError(text))
    if kept is None:
        assert shown == text
    else:
        half, num_left_out = kept
        assert shown == f"{text[:half]} ... ({num_left_out} characters left out) ... {text[-half:]}"
    assert len(traceback_of(ValueError("x" * 60_000))) < 50_100


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x07\r", "\\x1b[31mred\\x07\\x0d"),
        ("\x00\x08\x0b\x1f \x7e\x7f\x80\x9f\xa0", "\\x00\\x08\\x0b\\x1f ~\\x7f\\x80\\x9f\xa0"),
        ("\udc80", "\\udc80"),
    ],
)
def test_control_characters_are_shown_as_their_numbers(text, shown):
    assert printable(text) == shown
    assert summary_of(ValueError("\udc80")) == "ValueError: \\udc80"
    assert summary_of(Wordless()).startswith("Wordless: (no text: str() raised ")


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (ValueError("a", 1, None), ("ValueError", "('a', 1, None)", ("a", 1, None), {})),
        (ValueError(), ("ValueError", "", (), {})),
        (ValueError([1]), ("ValueError", "[1]", ("[1]",), {})),
        (ValueError("x" * 10_000), ("ValueError", "x" * 10_000, ("x" * 10_000,), {})),
        (FileNotFoundError(2, "No such file", "a"), (
            "FileNotFoundError", "[Errno 2] No such file: 'a'", (2, "No such file", "a"), {})),
        (NeedsNames(code=3), ("NeedsNames", "code 3", (), {"code": 3})),
        (Unpicklable("a lock"), ("Unpicklable", "a lock", ("a lock",), {})),
        (Env.Broken("a"), ("Env.Broken", "a", ("a",), {})),
    ],
)  # fmt: skip
def test_what_of_an_exception_travels(error, fields):
    error._private, error.long = 1, ["a list"]
    failure = RemoteFailure.of(error)
    assert (failure.type_name.removeprefix(f"{__name__}."), failure.message, *fields[2:]) == fields
    assert (failure.arguments, failure.attributes) == fields[2:]
    again = RemoteFailure.from_json(failure.to_json())
    names = ("type_name", "message", "traceback", "arguments", "attributes", "notes")
    assert [getattr(again, name) for name in names] == [getattr(failure, name) for name in names]
    assert type(again.rebuild("x")) is type(error)


@pytest.mark.parametrize(
    "name", ["SystemExit", "KeyboardInterrupt", "int", "nowhere.Error", "os.path.Nothing", "print"]
)
def test_a_name_that_is_no_exception_comes_back_as_text(name):
    fields = {"message": "m", "traceback": "t", "arguments": [1], "attributes": {}, "notes": []}
    text = json.dumps({"type_name": name, **fields})
    error = RemoteFailure.from_json(text.encode()).rebuild("worker 1")
    assert (type(error), str(error), error.__notes__) == (WorkerError, f"{name}: m", ["raised in worker 1\nt"])


def test_the_worker_of_an_error_is_kept_if_its_type_allows_it():
    class Slotted(Exception):
        __slots__ = ()

        def __setattr__(self, name, value):
            raise AttributeError(name)

    error = ValueError()
    assert worker_of(error) is None
    set_worker(error, 0)
    assert worker_of(error) == 0
    slotted = Slotted()
    set_worker(slotted, 1)
    assert worker_of(slotted) is None


@pytest.mark.parametrize(
    ("problems", "text"), [([], ""), (["a"], "a"), (["a", "b"], "2 problems:\n  - a\n  - b")], ids=str
)
def test_several_problems_are_a_list(problems, text):
    assert str(ConfigError(*problems)) == text


@pytest.mark.parametrize("is_json", [False, True])
def test_a_breakpoint_in_a_worker_says_what_to_do_and_where_it_is(is_json):
    def looked_into():
        pdb.Pdb(stdin=io.StringIO(), stdout=io.StringIO()).set_trace()
        return "the next line"

    trace = sys.gettrace()
    try:
        looked_into()
    except bdb.BdbQuit as error:
        failure = RemoteFailure.of(error)
    finally:
        sys.settrace(trace)
    arrived = RemoteFailure.from_json(failure.to_json()) if is_json else failure
    error = arrived.rebuild("worker 0")
    assert type(error) is bdb.BdbQuit
    assert str(error).startswith("breakpoint() in a worker has no terminal. Add debug=inline;")
    assert 'return "the next line"' in error.__notes__[-1]
    assert "bdb.py" not in error.__notes__[-1]
