"""What is wrong with an entry of `rules` whose settings are unknown or stand in another place, in words."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from kafka_lake.components.rule_settings import settings_of_kinds
from kafka_lake.ingest.rule import KINDS, RuleEntry
from kafka_lake.ingest.topic_table import pydantic_fields

_WORD = re.compile(r"^\w+$")


def rule_error(place: Sequence[object], kind: str, text: str) -> str | None:
    """Return what Pydantic says of an entry of ``rules``, with the entry's number and kind.

    Args:
        place: Where it is, as Pydantic tells it: names of settings, numbers of entries, and of its own types.
        kind: What kind of error Pydantic found.
        text: What it says.

    Returns:
        None if the place is in no entry of ``rules``.

    >>> rule_error(("rules", 1, "range", "RangeFieldsModel", "on_failure"), "extra_forbidden", "")
    'rules: number 2 (range): on_failure: is a setting of the rule. Write it beside range:, not in it'
    """
    parts = [str(each) for each in place if _WORD.match(str(each)) and not str(each).endswith("Model")]
    if len(parts) < 3 or parts[0] != "rules" or not parts[1].isdigit():
        return None
    number, names = int(parts[1]) + 1, parts[2:]
    within = names[0] if len(names) > 1 and names[0] in KINDS else None
    where = f"rules: number {number}{f' ({within})' if within else ''}"
    if kind != "extra_forbidden":
        # A value that fits no member of a union is refused for each.
        left = [name for name in names if name not in ("str", within)]
        return f"{': '.join([where, *left])}: {text}"
    said = _of_a_kind(within, names[-1]) if within else _of_an_entry(names[-1])
    return f"{where}: {names[-1]}: {said}"


def _of_a_kind(within: str, setting: str) -> str:
    if setting in pydantic_fields(RuleEntry):
        return f"is a setting of the rule. Write it beside {within}:, not in it"
    own = settings_of_kinds().get(within, ())
    return f"there is no such setting of {within}. {_near(setting, own)}Its settings are {', '.join(own)}"


def _of_an_entry(setting: str) -> str:
    if kinds := [kind for kind, own in settings_of_kinds().items() if setting in own]:
        several = f"one of {', '.join(kinds)}" if len(kinds) > 1 else f"{kinds[0]}:"
        return f"is a setting of a kind of rule. Write it in {several}, not beside it"
    every = list(pydantic_fields(RuleEntry))
    return f"there is no such setting of a rule. {_near(setting, every)}Its settings are {', '.join(every)}"


def _near(setting: str, known: Sequence[str]) -> str:
    near = get_close_matches(setting, known, 1)
    return f"Is it {near[0]}? " if near else ""
