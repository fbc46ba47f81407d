"""The team's table of reports, and the work on one. The old consumer and the application both use it.

In: a file of SQLite, and the numbers of records. Out: their states, of which only 5 is the original's own
number. Two columns are for tests: the next `fails` attempts fail (-1: all of them), and the next `hangs`
attempts never end. `generated` counts how often a report was made, which is once if nothing goes wrong.
"""

import json
import sqlite3
import time

WAITING, GENERATING, GENERATED, FAILED = 1, 2, 3, 5


def say(**line):
    print(json.dumps({name: str(value) for name, value in line.items()}), flush=True)


class Broken(Exception):
    """The report cannot be made now."""


class Table:
    def __init__(self, path):
        self.db = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.db.row_factory = sqlite3.Row
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, status INTEGER, retry_count INTEGER,"
            " error TEXT, generated INTEGER, fails INTEGER, hangs INTEGER)"
        )
        self.db.execute("CREATE TABLE IF NOT EXISTS done (task TEXT PRIMARY KEY, answer TEXT)")

    def add(self, record, fails, hangs):
        new = (record, WAITING, fails, hangs)
        self.db.execute("INSERT INTO records VALUES (?, ?, 0, '', 0, ?, ?)", new)

    def all(self):
        return [dict(row) for row in self.db.execute("SELECT * FROM records ORDER BY id")]

    def status(self, record):
        row = self.db.execute("SELECT status FROM records WHERE id = ?", (record,)).fetchone()
        return row and row["status"]

    def set(self, record, **values):
        names = ", ".join(f"{name} = ?" for name in values)
        self.db.execute(f"UPDATE records SET {names} WHERE id = ?", (*values.values(), record))

    def generate(self, record, retry_count, task=None, answer=None):
        """Makes a report in one transaction, which also notes that the task is done, if there is one."""
        self.set(record, status=GENERATING, retry_count=retry_count)
        say(began=record, retry_count=retry_count)
        knobs = self.db.execute("SELECT fails, hangs FROM records WHERE id = ?", (record,)).fetchone()
        if knobs["hangs"]:
            self.set(record, hangs=knobs["hangs"] - 1)
            say(hangs=record)
            time.sleep(3600)
        if knobs["fails"]:
            self.set(record, fails=knobs["fails"] - 1 if knobs["fails"] > 0 else -1)
            say(broke=record)
            raise Broken(f"report {record} has no data")
        self.db.execute("BEGIN IMMEDIATE")
        self.set(record, status=GENERATED, error="")
        self.db.execute("UPDATE records SET generated = generated + 1 WHERE id = ?", (record,))
        if task:
            self.db.execute("INSERT INTO done VALUES (?, ?)", (task, answer))
        self.db.execute("COMMIT")
        say(generated=record)

    def fail(self, record, why):
        """The final failure. A report that was made meanwhile stays as it is."""
        failed = (FAILED, why, record, GENERATED)
        self.db.execute("UPDATE records SET status = ?, error = ? WHERE id = ? AND status != ?", failed)

    def answer_to(self, task):
        """The first answer to a task that is done."""
        row = self.db.execute("SELECT answer FROM done WHERE task = ?", (task,)).fetchone()
        return row and row["answer"]
