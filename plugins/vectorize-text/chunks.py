"""Cuts a document into pieces of a size, at the ends of paragraphs and sentences where it can. Knows nothing of tasks."""

import re

# A blank line, an end of line, the end of a sentence, a blank: the best place to cut first.
ENDS = [re.compile(pattern) for pattern in (r"\n\s*\n", r"\n", r"[.!?]\s|[。！？；]", r"\s|[，、]")]


def chunks(text: str, size: int) -> list[tuple[int, int]]:
    """From and to of each piece, without the blanks around it. None is longer than `size` characters."""
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
