"""Standard streams that are closed, and output that nobody reads any more."""

import os
import sys

from collectx.process import open_closed, outlive_readers


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
