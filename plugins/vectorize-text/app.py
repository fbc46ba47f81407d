"""Cuts a document of a knowledge base into pieces, and gives each its keywords and its vector.

In: a task with the fields `kbId` and `content`. Out: the pieces as JSON, each with its place in the document.
Not here: where to cut (`chunks`), and how a vector is made (`vectors`).
"""

from chunks import chunks
from tqhost import config, handles, progress, reject, retry, text
from vectors import keywords, terms, vector

MAX_CHARACTERS = 200_000


def setting(key: str, default: int, least: int, most: int) -> int:
    value = config(key)
    if value is None:
        return default
    if not value.isdecimal() or not least <= int(value) <= most:
        # Only the operator can correct that, and the task is not at fault.
        raise retry(f"the configuration key `{key}` is not a number from {least} to {most}")
    return int(value)


def vectorize(task):
    size = setting("chunk_characters", 800, 100, 10_000)
    dimensions = setting("dimensions", 512, 16, 65_536)
    kb_id, content = text(task, "kbId"), text(task, "content")
    if not kb_id.strip():
        raise reject("field `kbId` is empty")
    if len(content) > MAX_CHARACTERS:
        raise reject(f"field `content` has {len(content)} characters, more than {MAX_CHARACTERS}")
    if "\0" in content:
        raise reject("field `content` is binary, not text")
    places = chunks(content, size)
    if not places:
        raise reject("field `content` is empty")
    progress(20, f"{len(places)} pieces")
    found = [terms(content[start:stop]) for start, stop in places]
    typical = keywords(found, 8)
    progress(50, "vectors")
    pieces = [
        {"from": start, "to": stop, "keywords": words, "vector": vector(of_piece, dimensions)}
        for (start, stop), of_piece, words in zip(places, found, typical)
    ]
    print(f"kb {kb_id}: {len(pieces)} pieces")
    return {
        "kbId": kb_id,
        "method": "hashed-ngrams",
        "dimensions": dimensions,
        "characters": len(content),
        "chunks": pieces,
    }


Handler = handles(vectorize)
