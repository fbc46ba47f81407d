"""{{NAME}}: asks a model for a summary of a text.

In: a task with the field `content`; and the plugin's `config`: `url` of a server with OpenAI's interface,
`model`, and `api_key`, if the server wants one. Out: `{"summary": …}`. If the server is busy or away, the
task is tried again when the server says, and a queue with `hold` waits for it.
"""

import json

from tqhost import config, handles, progress, reject, retry, text, unavailable
from tqhost_http import fetch


def joined(events: str) -> str:
    """The text of an answer that came as events."""
    lines = [line for line in events.split("\n") if line.startswith("data: {")]
    choices = [json.loads(line.removeprefix("data: "))["choices"] for line in lines]
    return "".join(each[0]["delta"].get("content") or "" for each in choices if each)


async def ask(prompt: str) -> str:
    key = config("api_key")
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    question = {
        "model": config("model") or "small",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
    }
    url = f"{config('url')}/chat/completions"
    progress(10, "waits for the model")
    answer = await fetch("POST", url, headers=headers, body=json.dumps(question), timeout=30)
    said = f"the model's server says {answer.status}"
    if answer.status in (429, 503):
        raise unavailable(said, answer.retry_after_ms())
    if answer.status >= 500:
        raise retry(said)
    if answer.status != 200:
        raise reject(f"{said}: {answer.body.decode('utf-8', 'replace')[:200]}")
    return joined(answer.text())


async def summarize(task):
    content = text(task, "content")
    if not content.strip():
        raise reject("field `content` is empty")
    return {"summary": await ask(f"Summarize in one sentence:\n\n{content}")}


Handler = handles(summarize)
