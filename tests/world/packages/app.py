"""Uses each package of docs/languages/packages.md. The field `package` says which one.

`model` of the plugin's config is a server with the interfaces of OpenAI and Anthropic, `events` one that
streams, and `web` one with the pages of the tests.
"""

import asyncio
import io
import urllib.request

import anthropic
import bs4
import dateutil.parser
import httpx
import jinja2
import markdown
import openai
import pydantic
import pypdf
import requests
import tenacity
import yaml

from tqhost import config, handles, text

MESSAGES = [{"role": "user", "content": "x"}]


def raises(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def of_openai(model, web):
    question = {"model": "m", "messages": MESSAGES}
    client = openai.OpenAI(base_url=model, api_key="k")
    assert client.chat.completions.create(**question).choices[0].message.content == "Hello"
    streaming = openai.OpenAI(base_url=config("events"), api_key="k")
    events = streaming.chat.completions.create(**question, stream=True)
    assert "".join(event.choices[0].delta.content for event in events) == "Hello"
    async with openai.AsyncOpenAI(base_url=model, api_key="k") as client:
        found = await asyncio.gather(*(client.chat.completions.create(**question) for _ in range(2)))
    assert [each.choices[0].message.content for each in found] == ["Hello", "Hello"]
    slow = openai.OpenAI(base_url=f"{web}/silent?", api_key="k", timeout=0.1, max_retries=0)
    raises(openai.APITimeoutError, lambda: slow.chat.completions.create(**question))


def of_anthropic(model, _):
    client = anthropic.Anthropic(base_url=model, api_key="k")
    assert client.messages.create(model="m", max_tokens=9, messages=MESSAGES).content[0].text == "Hello"


async def of_httpx(_, web):
    assert httpx.get(f"{web}/zipped").text == "zipped"
    async with httpx.AsyncClient() as client:
        both = await asyncio.gather(*(client.get(f"{web}/meet") for _ in range(2)))
    assert [each.text for each in both] == ["met", "met"]
    raises(httpx.ReadTimeout, lambda: httpx.get(f"{web}/silent", timeout=0.1))


def of_requests(_, web):
    assert requests.post(f"{web}/size", data=b"12345").text == "5"
    assert requests.Session().get(f"{web}/zipped").text == "zipped"
    raises(requests.Timeout, lambda: requests.get(f"{web}/silent", timeout=0.1))
    raises(requests.HTTPError, requests.get(f"{web}/status?418").raise_for_status)


def of_urllib(_, web):
    with urllib.request.urlopen(f"{web}/size", data=b"12345") as response:
        assert response.read() == b"5"


def of_pydantic(*_):
    class Order(pydantic.BaseModel):
        items: list[int]

    assert Order.parse_raw('{"items": ["1"]}').items == [1]
    raises(pydantic.ValidationError, lambda: Order(items=["x"]))


def of_tenacity(_, web):
    tries = []

    @tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(0.01))
    def ask():
        tries.append(requests.get(f"{web}/status?{200 if len(tries) == 2 else 503}"))
        tries[-1].raise_for_status()

    ask()
    assert len(tries) == 3


def of_jinja2(*_):
    page = jinja2.Environment(autoescape=True).from_string("{% for x in xs %}<{{ x }}>{% endfor %}")
    assert page.render(xs=["&"]) == "<&amp;>"


def of_pypdf(*_):
    writer, file = pypdf.PdfWriter(), io.BytesIO()
    writer.add_blank_page(72, 72)
    writer.add_metadata({"/Title": "A title"})
    writer.write(file)
    read = pypdf.PdfReader(file)
    assert (read.metadata.title, read.pages[0].extract_text()) == ("A title", "")


def of_beautifulsoup4(*_):
    page = bs4.BeautifulSoup("<ul><li>1<li><b>2</b></ul>", "html.parser")
    assert [each.get_text() for each in page.select("ul li b")] == ["2"]


def of_dateutil(*_):
    assert dateutil.parser.parse("29 Nov 2026 12:00 +0200").isoformat() == "2026-11-29T12:00:00+02:00"


def of_yaml(*_):
    assert yaml.safe_load(yaml.safe_dump({"a": [1, None]})) == {"a": [1, None]}


def of_markdown(*_):
    assert markdown.markdown("*a*") == "<p><em>a</em></p>"


async def run(task):
    used = globals()[f"of_{text(task, 'package')}"](config("model"), config("web"))
    if asyncio.iscoroutine(used):
        await used


Handler = handles(run)
