"""Cuts a document into pieces of a size, if possible at the ends of paragraphs and sentences.

It does not depend on tasks.
"""

import re

# Places to cut, the best first: a blank line, an end of line, the end of a sentence, a blank.
ENDS = [re.compile(pattern) for pattern in (r"\n\s*\n", r"\n", r"[.!?]\s|[。！？；]", r"\s|[，、]")]


def chunks(text: str, size: int) -> list[tuple[int, int]]:
    """The start and end of each piece without the blanks around it. No piece is longer than `size`."""
    found = []
    start = 0
    while start < len(text):
        stop = min(start + size, len(text))
        if stop < len(text):
            stop = _cut(text, start, stop)
        piece = text[start:stop]
        left = len(piece) - len(piece.lstrip())
        if piece.strip():
            found.append((start + left, start + left + len(piece.strip())))
        start = stop
    return found


def _cut(text: str, start: int, stop: int) -> int:
    """The last good place to cut in the second half of the piece, else its end."""
    for end in ENDS:
        places = [match.end() for match in end.finditer(text, (start + stop) // 2, stop)]
        if places:
            return places[-1]
    return stop
