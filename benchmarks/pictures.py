"""The pictures of the display in the documentation: `python -m benchmarks.pictures` runs `collectx run` and `collectx
watch` in terminals of 80 columns, and of 56 for phones, and writes what these show in the middle of the run to
docs/images. Takes about a minute.
"""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.padding import Padding
from rich.terminal_theme import TerminalTheme

_IMAGES = Path(__file__).parents[1] / "docs" / "images"
_COLLECTX = str(Path(sys.executable).with_name("collectx"))
_RUN = ("collectx", "run", "experiment=cartpole_ppo")
# Columns and lines of the terminals, by what is added to the name of the picture.
_SIZES = {"": (80, 24), "-narrow": (56, 30)}
# What the display writes before it draws itself again: it erases its lines from below.
_AGAIN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
_IN_THE_MIDDLE = re.compile(r"\([5-8]\d%\)")
# The colours of the site: background, text, and black, red, green, yellow, blue, magenta, cyan and white.
_COLOURS = [
    *((0x19, 0x21, 0x2A), (0xD3, 0xDC, 0xE4)),
    *((0x19, 0x21, 0x2A), (0xE0, 0x70, 0x70), (0x53, 0xC7, 0xBA), (0xE0, 0xB4, 0x4F)),
    *((0x8A, 0xB8, 0xEE), (0xC9, 0x9B, 0xE0), (0x8A, 0xB8, 0xEE), (0xD3, 0xDC, 0xE4)),
]
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_SVG = (
    """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px FONT; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font: bold 18px FONT; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
).replace("FONT", _FONT)


def main() -> None:
    for suffix, size in _SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            _draw(f"run{suffix}", _RUN, " ".join(_RUN), size, folder)
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with (
            tempfile.TemporaryDirectory() as folder,
            subprocess.Popen((_COLLECTX, *_RUN[1:]), cwd=folder, **silent),
        ):
            while not (lines := [*Path(folder).glob("outputs/*/*/metrics.jsonl")]):
                time.sleep(0.1)
            run = str(lines[0].parent.relative_to(folder))
            _draw(f"watch{suffix}", ("collectx", "watch", run), "collectx watch RUN", size, folder)


def _draw(name: str, command: Sequence[str], title: str, size: tuple[int, int], folder: str) -> None:
    """Writes the picture of what a command shows first in the middle of a run."""
    state = next(text for text in _states(command, size, folder) if _IN_THE_MIDDLE.search(text))
    # With a margin on each side.
    console = Console(record=True, width=size[0] + 2, file=io.StringIO(), force_terminal=True)
    for line in AnsiDecoder().decode(state.replace("\r", "").strip("\n")):
        line.rstrip()
        console.print(Padding(line, (0, 1)))
    theme = TerminalTheme(*_COLOURS[:2], _COLOURS[2:])
    svg = console.export_svg(title=title, theme=theme, code_format=_SVG, unique_id=name)
    (_IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n")
    print(f"wrote {name}.svg")


def _states(command: Sequence[str], size: tuple[int, int], folder: str) -> list[str]:
    """Returns all that a command draws in a terminal of this size, one text for each time; blocks until it has
    ended."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", size[1], size[0], 0, 0))
    env, content = os.environ | {"TERM": "xterm-256color"}, b""
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen((_COLLECTX, *command[1:]), cwd=folder, env=env, **streams):
        os.close(theirs)
        with suppress(OSError):  # at the end, the terminal is closed
            while part := os.read(ours, 1 << 16):
                content += part
    os.close(ours)
    return _AGAIN.split(content.decode())


if __name__ == "__main__":
    main()
