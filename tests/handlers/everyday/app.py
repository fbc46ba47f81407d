"""Eleven everyday programs in Python. The field `program` says which one runs."""

import asyncio
import csv
import importlib
import io
import json as jsons
import logging
import random
import secrets
import socket
import ssl
import time
import urllib.error
import urllib.request
import uuid
from datetime import datetime, timedelta, timezone

from slugify import slugify

from tqhost import config, handles, json, text
from tqhost_blobs import blobs
from tqhost_http import fetch, request


def packages(task):
    return {"used": slugify("Crème Brûlée")}


def dates(task):
    date = datetime.fromisoformat("2026-02-28T23:30:00+02:00").astimezone(timezone.utc) + timedelta(days=1)
    shown = date.isoformat().replace("+00:00", "Z")
    return {"date": shown, "day": date.strftime("%A"), "seconds": int(time.time())}


def uuids(task):
    return {"uuid": str(uuid.uuid4())}


def logs(task):
    print("an everyday line", {"n": 1})
    logging.warning("an everyday warning")


def http(task):
    response = request(
        "POST",
        config("service"),
        headers={"content-type": "application/json", "x-task": task.id},
        body=jsons.dumps({"words": ["one", "two"]}),
    )
    return {"status": response.status, "body": response.text()}


def sums(task):
    order = json(task, "order")
    return {"total": sum(item["price"] * item["n"] for item in order["items"]), "name": order["name"]}


def files(task):
    rows = io.StringIO()
    csv.writer(rows).writerows((n, f"row {n}") for n in range(100_000))
    name = f"{task.id}/rows.csv"
    blobs.put(name, "text/csv", rows.getvalue())
    numbers = [int(row[0]) for row in csv.reader(io.StringIO(blobs.text(name)))]
    return {"rows": len(numbers), "sum": sum(numbers)}


def exceptions(task):
    try:
        order()
    except LookupError as error:
        raise RuntimeError("the order failed") from error


def order():
    try:
        price()
    except ValueError as error:
        raise LookupError("the order has no price") from error


def price():
    raise ValueError("there is no book 7")


def waits(task):
    async def later(value):
        await asyncio.sleep(0.02)
        return value

    async def both():
        return await asyncio.gather(later(1), later(2))

    return {"sum": sum(asyncio.run(both()))}


def draws(task):
    return {"drawn": [random.random(), secrets.randbits(48) + 0.5]}


def habits(task):
    """What programs do elsewhere without a thought."""
    origin = config("service").removesuffix("/size")

    def why(call):
        try:
            return call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def late():
        import colorsys  # build_plan.py sees it

        return colorsys.__name__

    async def both():
        answers = (fetch("POST", f"{origin}/size", body=b"12345") for _ in range(2))
        return [answer.text() for answer in await asyncio.gather(*answers)]

    async def in_thread():
        return await asyncio.to_thread(lambda: "in no thread")

    def size(url, **options):
        with urllib.request.urlopen(url, **options) as response:
            return response.read().decode()

    return {
        "urllib": size(f"{origin}/size", data=b"12345"),
        "zipped": request("GET", f"{origin}/zipped").text(),
        "both": asyncio.run(both()),
        "late": why(lambda: size(f"{origin}/silent", timeout=0.1)),
        "status": why(lambda: size(f"{origin}/status?418")),
        "codec": b"\xe9".decode("cp1252") + b"\x83n".decode("shift_jis"),
        "socket": why(socket.socket),
        "lookup": why(lambda: socket.getaddrinfo("localhost", 80)),
        "tls": why(lambda: ssl.create_default_context().wrap_socket(None)),
        "import": late(),
        "late import": why(lambda: importlib.import_module("turtle")),
        "thread": asyncio.run(in_thread()),
    }


programs = {
    "habits": habits,
    "packages": packages,
    "dates": dates,
    "uuids": uuids,
    "logging": logs,
    "http": http,
    "json": sums,
    "files": files,
    "exceptions": exceptions,
    "async": waits,
    "random": draws,
}

Handler = handles(lambda task: programs[text(task, "program")](task))
