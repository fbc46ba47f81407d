"""{{NAME}}: counts the words of a text.

In: a task with the field `content`. Out: `{"words": n}`.
"""

from tqhost import handles, reject, text


async def count(task):
    words = len(text(task, "content").split())
    if words == 0:
        raise reject("field `content` is empty")
    print(f"counted {words} words")
    return {"words": words}


Handler = handles(count)
