"""The table of wrong settings in docs/kafka-security.md, from the cases that a test runs."""

import re

from kafka_lake_tests.contract.kafka_security.test_wrong_settings import CASES


def wrong_settings() -> str:
    """Return the table in Markdown: what is wrong, which error it is, what that says, and what it says to do."""
    lines = ["| what is wrong | error | it says | and names |", "| --- | --- | --- | --- |"]
    for name, _, kind, said, remedy in CASES:
        lines.append(f"| {name} | {kind.__name__} | `{_plain(said)}` | `{remedy}` |")
    return "\n".join(lines)


def _plain(pattern: str) -> str:
    """Write a regular expression as a reader sees the text, with … for what varies."""
    return re.sub(r"\.\*|\\d(?:\+|\{\d\}-)", "…", pattern).replace("\\.", ".").rstrip("(:")
