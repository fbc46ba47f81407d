"""Writes docs/demo.svg: what the demo prints, cut to the lines that fit a screen.

    TQHOST_BIN=target/debug/tqhost python3 scripts/recording.py [FILE]

In: the demo of `make run` with this binary (default: the debug build) and its handlers, which take half a
minute. Out: a picture of text, for light and dark pages. Nothing in it is written by hand: the lines are
those of the run, and where lines are left out, the picture says how many.
"""

import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 40
# The sections of the demo that are shown, by the beginning of their titles, each with its most lines.
SECTIONS = [
    ("Resumes are enqueued", 8),
    ("The handler is dropped", 10),
    ("A task that the handler rejects", 9),
    ("Tasks flow", 3),
    ("Done", 2),
]
CHARACTER, LINE, MARGIN = 7.25, 17, 14
STYLE = """
rect { fill: #f6f8fa; stroke: #d1d9e0 } text { fill: #1f2328 } .step { fill: #0550ae; font-weight: bold }
.command { fill: #116329; font-weight: bold } .cut { fill: #59636e }
@media (prefers-color-scheme: dark) {
rect { fill: #0d1117; stroke: #3d444d } text { fill: #e6edf3 } .step { fill: #79c0ff }
.command { fill: #7ee787 } .cut { fill: #9198a1 } }
"""


def sections(output):
    """The sections of the demo: the lines from one `== ` to the next, without the empty ones."""
    found = []
    for line in output.splitlines():
        if line.startswith("== "):
            found.append([])
        if found and line:
            found[-1].append(line)
    return found


def recording(output):
    """The lines of the picture, with an empty one between two sections."""
    shown = []
    for title, most in SECTIONS:
        section = next((lines for lines in sections(output) if lines[0].startswith(f"== {title}")), None)
        if section is None:
            sys.exit(f"recording: the demo has no section `{title}`")
        left = len(section) - most
        # The last section goes on with advice, which the README has, too.
        if left > 0 and title != "Done":
            section = section[: most - 1] + [f"… {left + 1} more lines"]
        shown += ([""] if shown else []) + section[:most]
    if len(shown) > MAX_LINES:
        sys.exit(f"recording: {len(shown)} lines, more than {MAX_LINES}")
    return shown


def picture(lines):
    kinds = {"== ": "step", "$ t": "command", "$ c": "command", "… ": "cut"}
    width = round(2 * MARGIN + CHARACTER * max(map(len, lines)))
    height = 2 * MARGIN + LINE * len(lines)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"'
    yield ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="12">'
    yield f"<title>What the demo prints</title><style>{STYLE}</style>"
    yield f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    for number, line in enumerate(lines):
        kind = next((name for start, name in kinds.items() if line.startswith(start)), "")
        mark = f' class="{kind}"' if kind else ""
        y = MARGIN + LINE * number + 12
        if line:
            yield f'<text x="{MARGIN}" y="{y}"{mark} xml:space="preserve">{escape(line)}</text>'
    yield "</svg>"


def main():
    demo = subprocess.run([ROOT / "demo/run.sh"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if demo.returncode:
        sys.exit(f"recording: the demo has failed\n{demo.stdout}")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/demo.svg"
    target.write_text("\n".join(picture(recording(demo.stdout))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
