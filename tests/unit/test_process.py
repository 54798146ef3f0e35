"""A process protected from its surroundings: limits of time, handlers that user code replaces, closed streams."""

import faulthandler
import os
import signal
import sys
import threading
from contextlib import suppress

import pytest

from collectx import process, progress
from collectx.process import limited, open_closed, outlive_readers


def loop(timeout_s):
    with limited("making an env", "collector.start_timeout_s", timeout_s):
        while True:
            pass


@pytest.mark.sample(1)
@pytest.mark.parametrize("timeout_s", [1e-9, 1e-5, 1e-4])
def test_a_limit_that_is_reached_at_once_is_a_timeout_wherever_it_interrupts(timeout_s):
    for _ in range(100):
        with pytest.raises(TimeoutError, match="making an env took more than"):
            loop(timeout_s)


@pytest.mark.parametrize(("repeats", "count"), [(False, 1), (True, 4)])
def test_what_is_imported_is_said_once_where_nothing_replaces_it(monkeypatch, capsys, repeats, count):
    for name, value in {"_SILENT_S": 0.0, "_TELL_S": 0.0, "_has_told": False}.items():
        monkeypatch.setattr(progress, name, value)
    for name in ("first", "second"):
        with progress.telling_imports(repeats):
            for number in range(2):
                with suppress(ImportError):
                    __import__(f"{name}_{number}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == count
    assert lines[0] == "collectx: starting (importing Python packages, now first_0)"


@pytest.mark.parametrize(
    ("module", "text"), [("torch._dynamo", ", now torch"), ("my_env", ", now my_env"), ("pwd", "")]
)
def test_only_modules_that_tell_something_are_named(module, text):
    assert progress.packages(module) == f"Python packages{text}"


@pytest.mark.parametrize(("timeout_s", "is_said"), [(60.0, True), (0.1, False)])
def test_what_takes_long_is_said_unless_it_is_over_by_then(monkeypatch, timeout_s, is_said):
    monkeypatch.setattr(process, "_PATIENCE_S", 0.1)
    said, texts = threading.Event(), []

    def say(text):
        texts.append(text)
        said.set()

    def block():
        with limited("making an env", "collector.start_timeout_s", timeout_s, say):
            said.wait(60.0)

    if is_said:
        block()
        assert "making an env has taken more than 0.1 s" in texts[0]
        assert "threading.py" in texts[0]
    else:
        with pytest.raises(TimeoutError):
            block()
        assert texts == []


def test_a_limit_leaves_the_handler_of_stacks_and_a_terminals_size_alone(tmp_path):
    with open(tmp_path / "stacks", "w") as file:
        faulthandler.register(signal.SIGURG, file, all_threads=False)
        try:
            with limited("making an env", "collector.start_timeout_s", 60.0):
                os.kill(os.getpid(), signal.SIGWINCH)
            os.kill(os.getpid(), signal.SIGURG)
        finally:
            faulthandler.unregister(signal.SIGURG)
    assert "test_process.py" in (tmp_path / "stacks").read_text()


@pytest.mark.parametrize(("most", "is_given_up"), [(1, False), (3, False), (9, True)])
def test_code_is_interrupted_three_times_before_it_is_given_up(monkeypatch, most, is_given_up):
    """The code catches every interrupt, and ends after the last that it is to catch."""
    monkeypatch.setattr(process, "_END_S", 0.2)
    num_caught, given_up, errors = 0, threading.Event(), []

    def give_up(error):
        errors.append(error)
        given_up.set()

    with limited("making an env", "collector.start_timeout_s", 0.1, give_up=give_up):
        while num_caught < most and not given_up.is_set():
            try:
                while not given_up.is_set():
                    pass
            except BaseException:
                num_caught += 1
    for thread in threading.enumerate():
        if thread.name == "collectx-limit":
            thread.join()
    assert num_caught == min(most, 3)
    assert [str(error) for error in errors] == [
        "making an env took more than 0.1 s (collector.start_timeout_s=0.1). If that is normal, raise "
        "collector.start_timeout_s."
    ] * is_given_up


# --- signal handlers ---


def ours(signum, frame):
    """Stands in for a run's handler."""


def theirs(signum, frame):
    """Stands in for the handler of an env."""


@pytest.fixture
def said():
    earlier = {signum: signal.getsignal(signum) for signum in (signal.SIGUSR1, signal.SIGUSR2)}
    notes = []
    for signum in earlier:
        signal.signal(signum, ours)
    process.keep_handlers(dict.fromkeys(earlier, ours), notes.append)
    yield notes
    process.keep_handlers({}, print)
    for signum, handler in earlier.items():
        signal.signal(signum, handler)


def test_replaced_handlers_are_put_back_and_noted_once(said):
    rule = "The run needs its own, so it restored them."
    for maker, replaced, wanted in (
        ("env.id=A", [], []),
        ("env.id=A", [signal.SIGUSR1], [f"env.id=A replaced the handlers of SIGUSR1. {rule}"]),
        ("env.id=A", [signal.SIGUSR1], []),
        ("env.id=A", [signal.SIGUSR1, signal.SIGUSR2], [f"env.id=A replaced the handlers of SIGUSR1, SIGUSR2. {rule}"]),
        ("env.id=B", [signal.SIGUSR2], [f"env.id=B replaced the handlers of SIGUSR2. {rule}"]),
    ):
        for signum in replaced:
            signal.signal(signum, theirs)
        process.restore_handlers(maker)
        assert [signal.getsignal(signum) for signum in (signal.SIGUSR1, signal.SIGUSR2)] == [ours, ours]
        assert said == wanted
        said.clear()
    process.keep_handlers({signal.SIGUSR1: ours}, said.append)
    signal.signal(signal.SIGUSR1, theirs)
    process.restore_handlers("env.id=B")
    assert len(said) == 1
    signal.signal(signal.SIGUSR2, theirs)
    process.restore_handlers("env.id=B")
    assert signal.getsignal(signal.SIGUSR2) is theirs


def test_other_threads_change_no_handler(said):
    signal.signal(signal.SIGUSR1, theirs)
    thread = threading.Thread(target=process.restore_handlers, args=["env.id=A"])
    thread.start()
    thread.join()
    assert (signal.getsignal(signal.SIGUSR1), said) == (theirs, [])


def in_this_thread(function, *arguments):
    function(*arguments)


def in_another_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


@pytest.mark.parametrize(("call", "handler"), [(in_this_thread, theirs), (in_another_thread, ours)])
def test_a_block_has_handlers_of_its_own_in_the_main_thread(said, call, handler):
    seen = []

    def block():
        with suppress(OSError), process.handling({signal.SIGUSR1: theirs}):
            seen.append(signal.getsignal(signal.SIGUSR1))
            raise OSError

    call(block)
    assert seen == [handler]
    assert signal.getsignal(signal.SIGUSR1) is ours


def test_a_hangup_that_nohup_ignores_stays_ignored_in_the_block():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process.handling({signal.SIGHUP: theirs}):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# --- standard streams ---


def pipe_output(monkeypatch):
    """Makes standard output and error pipes; returns the descriptors of their readers."""
    readers = []
    for name in ("stdout", "stderr"):
        reader, writer = os.pipe()
        stream = os.fdopen(writer, "w", encoding="ascii", errors="backslashreplace", buffering=1)
        monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr(sys, f"__{name}__", stream)
        readers.append(reader)
    return readers


def test_output_without_a_reader_is_dropped_and_told_once(monkeypatch):
    piped = pipe_output(monkeypatch)
    told = []
    outlive_readers(told.append)
    print("a line \u2026")
    print("an error", file=sys.stderr)
    assert [os.read(reader, 100) for reader in piped] == [b"a line \\u2026\n", b"an error\n"]
    assert sys.stdout.line_buffering
    os.close(piped[1])
    print("nobody reads this", file=sys.stderr)
    assert told == []
    os.close(piped[0])
    for _ in range(2):
        print("nor this")
    assert told == ["standard output was closed, so the command continues without it."]
    for stream in (sys.__stdout__, sys.__stderr__):
        stream.close()


def test_replaced_streams_are_left_alone(monkeypatch):
    mine, other = object(), object()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, mine)
        monkeypatch.setattr(sys, f"__{name}__", other)
    outlive_readers(print)
    assert sys.stdout is sys.stderr is mine


def test_streams_that_python_found_closed_are_opened(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_closed()
    assert (sys.stdin.read(), sys.stdout.write("lost"), sys.stderr.write("lost")) == ("", 4, 4)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        assert stream.name == os.devnull
        stream.close()
