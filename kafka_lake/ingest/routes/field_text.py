"""The text of a JSON value's field, as a column of Spark's: by a pattern where that tells, else by Spark's parser.

`get_json_object` makes a parser and a writer for each record, which takes more time than all else of reading it.
"""

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

_SPACE = r"[ \t\r\n]*+"
# No escapes, no control characters, and no character that may stand for bytes that are none.
_CHARACTER = r"[ !#-\[\]-\uFFFC]"
_NUMBER = r"-?(?:0|[1-9][0-9]{0,99}+)(?:\.[0-9]{1,99}+)?(?:[eE][-+]?[0-9]{1,3}+)?"
_VALUE = rf'(?:"{_CHARACTER}*+"|{_NUMBER}|true|false|null)'
# A field further behind costs as much by the pattern as by the parser.
_FIELDS_BEFORE = 8


def text_of(field: str) -> Column:
    """Return the text of a field of ``value``, as `get_json_object` gives it; in values that end too early, too.

    Args:
        field: Its name; a dot leads into an object.
    """
    value = F.col("value").cast("string")
    parsed = F.get_json_object(value, path_of(field))
    if (pattern := pattern_of(field)) is None:
        return parsed
    return F.coalesce(F.get(F.regexp_extract_all(value, F.lit(pattern), F.lit(1)), F.lit(0)), parsed)


def pattern_of(field: str) -> str | None:
    """Return a pattern of JSON objects, from their beginning to the text of a field, its only group; None if none can.

    Before the field there may be some others, none of them by its name, whose values are no objects and no arrays. What
    is matched can be read in one way only: so the first field of that name has this text, if all of it is JSON.
    """
    if "." in field or not re.fullmatch(_CHARACTER + "{1,200}", field):
        return None
    # re.escape of Python's writes what Java's patterns take, too.
    name = re.escape(field)
    before = (
        rf'(?:"(?!{name}"){_CHARACTER}{{0,200}}+"{_SPACE}:{_SPACE}{_VALUE}{_SPACE},{_SPACE}){{0,{_FIELDS_BEFORE}}}+'
    )
    return rf'\A{_SPACE}\{{{_SPACE}{before}"{name}"{_SPACE}:{_SPACE}"({_CHARACTER}*+)"{_SPACE}[,}}]'


def path_of(field: str) -> str:
    """Return the JSON path of a field; a dot leads into an object.

    >>> path_of("source.table")
    "$['source']['table']"
    """
    return "$" + "".join(f"['{name}']" for name in field.split("."))
