"""The terms of a text, its keywords, and its vector. This module does not depend on tasks.

A vector is made by hashing: each term, and each pair of neighbours, adds to one of a fixed number of places.
It needs no model and is the same on every machine. Texts with the same words are near each other, but the
vector does not know what words mean.
"""

import math
import re
import zlib
from collections import Counter

WORD = re.compile(r"[a-z0-9][a-z0-9+#.\-]*[a-z0-9+#]|[a-z0-9]|[à-ÿ]+|[\u4e00-\u9fff]+", re.IGNORECASE)
STOP = frozenset(
    "a an and are as at be been but by can do for from had has have he her his how i if in into is "
    "it its may more most must no not of on or "
    "our she so some such than that the their them then there these they this those to was we were "
    "what when where which who will with you your "
    "的 了 和 是 在 与 及 或 等 对 为 也 都 而".split()
)


def terms(text: str) -> list[str]:
    """Words without the most common ones; in Chinese, each pair of neighbouring characters."""
    found = []
    for word in WORD.findall(text.lower()):
        if "\u4e00" <= word[0] <= "\u9fff":
            pairs = [word[n : n + 2] for n in range(len(word) - 1)] or [word]
            found.extend(pair for pair in pairs if not any(character in STOP for character in pair))
        elif word not in STOP:
            found.append(word)
    return found


def keywords(terms_of_all: list[list[str]], count: int) -> list[list[str]]:
    """For each piece, the terms that are frequent in it and rare in the others."""
    spread = Counter(term for terms_of_one in terms_of_all for term in set(terms_of_one))
    pieces = len(terms_of_all)

    def typical(terms_of_one):
        counts = {term: n for term, n in Counter(terms_of_one).items() if len(term) > 1}
        weights = {term: n * math.log(1 + pieces / spread[term]) for term, n in counts.items()}
        return sorted(weights, key=lambda term: (-weights[term], term))[:count]

    return [typical(terms_of_one) for terms_of_one in terms_of_all]


def vector(found: list[str], dimensions: int) -> list[list]:
    """The places and weights that are not zero; the vector has the length 1."""
    places = Counter()
    pairs = [(f"{a} {b}", 0.5) for a, b in zip(found, found[1:])]
    for gram, weight in [(term, 1.0) for term in found] + pairs:
        digest = zlib.crc32(gram.encode())
        # Another bit gives the sign, so terms that share a place by chance cancel out on average.
        places[digest % dimensions] += weight if digest >> 31 else -weight
    length = math.sqrt(sum(weight * weight for weight in places.values()))
    if not length:
        return []
    return [[place, round(weight / length, 4)] for place, weight in sorted(places.items()) if weight]
