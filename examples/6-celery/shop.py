"""The team's Celery application, as it was. Its producers import this file, too."""

import os

from celery import Celery

redis = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery("shop", broker=redis, backend=redis)


@app.task
def total(prices, discount=0):
    return sum(prices) - discount


@app.task(bind=True, max_retries=5, default_retry_delay=2)
def charge(self, order):
    try:
        return pay(order, self.request.retries)
    except ConnectionError as problem:
        raise self.retry(exc=problem)


def pay(order, retries):
    """Stands for a service that is away at first, and refuses orders without an amount."""
    if order["amount"] <= 0:
        raise ValueError(f"order {order['id']} has no amount")
    if retries < order.get("fails", 0):
        raise ConnectionError("the bank does not answer")
    return {"order": order["id"], "paid": order["amount"]}
