"""The limit of worker logs, rewritten in place."""

import re

from collectx.run.log_limit import LogLimit, shorten

LIMIT = 20_000
COUNT = "[collectx: the line above was written {} times]"


def test_repeats_are_folded_and_counted_over_several_calls(tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text("dropped\n" * 3000 + "once\ntwice\ntwice\n")
    removed = shorten(log, LIMIT)
    first, *lines = log.read_text().splitlines()
    # The oldest lines of a log that is too large are not read.
    (kept,) = re.findall(r"written (\d+) times", lines[1])
    assert lines == ["dropped", COUNT.format(kept), "once", "twice", "twice"]
    assert f"run.max_log_bytes={LIMIT}" in first
    assert f"{removed:,} bytes" in first
    with log.open("a") as file:
        file.write("twice\n" * 3000)
    shorten(log, LIMIT, removed)
    *_, last, count = log.read_text().splitlines()
    assert last == "twice"
    assert re.fullmatch(r"\[collectx: the line above was written \d{4} times\]", count)


def test_counts_of_an_earlier_call_are_added(tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text("x" * 9_000 + "\n" + "same\n" * 2000 + "x" * 9_000 + "\n")
    shorten(log, LIMIT)
    log.write_text("x" * 20_000 + "\nsame\n" + COUNT.format(2000) + "\n" + "same\n" * 7)
    shorten(log, LIMIT)
    assert log.read_text().splitlines()[1:] == ["same", COUNT.format(2007)]


def test_the_newest_half_of_different_lines_is_kept(tmp_path):
    log = tmp_path / "worker-0.log"
    lines = [f"step {number}" for number in range(5000)]
    log.write_text("\n".join(lines) + "\n")
    shorten(log, LIMIT)
    kept = log.read_text().splitlines()[1:]
    assert kept == lines[-len(kept) :]
    assert LIMIT * 0.45 < log.stat().st_size < LIMIT * 0.55


def test_a_line_that_never_ends_is_limited_too(tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_bytes(b"." * 100_000)
    shorten(log, LIMIT)
    assert log.stat().st_size < LIMIT


def test_a_small_log_and_others_stay(tmp_path):
    events = []
    for name in ("worker-0.log", "trainer.log"):
        (tmp_path / name).write_text("same\n" * (10 if name == "worker-0.log" else 100_000))
    with LogLimit(tmp_path, ["worker-*.log"], LIMIT, lambda *arguments, **fields: events.append(fields)):
        pass
    assert not events
    assert (tmp_path / "trainer.log").stat().st_size == 500_000
