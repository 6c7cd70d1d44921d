"""SQL that users write: what it may call and read. Pure.

Spark runs a condition with the rights of the whole deployment: `reflect` calls any Java method, and so reads variables
and files. So a condition may call the functions of a list alone. Queries are in documents alone, whose authors may have
functions of their own: these may call all but what reaches beyond the rows.

A text is taken only if this module splits it into words exactly as Spark does. What the two might split differently
(comments with a backslash, raw strings, `$`, letters beyond ASCII) is refused outside of quotes. Spark substitutes
`${…}` before it parses, even in quotes: that is refused everywhere.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

REFUSED = {
    "java_method reflect try_reflect": "calls Java",
    "from_avro from_protobuf from_xml schema_of_avro schema_of_xml to_avro to_protobuf": "reads files by its options",
    "xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string": "reads "
    "addresses that XML names",
    "input_file_block_length input_file_block_start input_file_name": "shows paths of files",
    "python_worker_logs": "shows logs",
    "collations sql_keywords": "reads no row",
}
"""Functions of Spark that no condition and no query may call, and why."""

ALLOWED = frozenset(
    """
    abs acos acosh add_months aes_decrypt aes_encrypt aggregate any any_value approx_count_distinct
    approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate array
    array_agg array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh avg base64 bigint bin binary
    bit_and bit_count bit_get bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
    bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean bround btrim cardinality cast cbrt ceil
    ceiling char char_length character_length chr coalesce collate collation collect_list collect_set concat
    concat_ws contains conv convert_timezone corr cos cosh cot count count_if count_min_sketch covar_pop covar_samp
    crc32 csc cume_dist curdate current_catalog current_database current_date current_schema current_time
    current_timestamp current_timezone current_user date date_add date_diff date_format date_from_unix_date
    date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal
    decode degrees dense_rank double e element_at elt encode endswith equal_null every exists exp explode
    explode_outer expm1 extract factorial filter find_in_set first first_value flatten float floor forall
    format_number format_string from_csv from_json from_unixtime from_utc_timestamp get get_json_object getbit
    greatest grouping grouping_id hash hex histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union
    hll_union_agg hour hypot if ifnull initcap inline inline_outer instr int is_valid_utf8 is_variant_null isnan
    isnotnull isnull json_array_length json_object_keys json_tuple kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint
    kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
    kll_sketch_to_string_double kll_sketch_to_string_float kurtosis lag last last_day last_value lcase lead least
    left len length levenshtein listagg ln localtimestamp locate log log10 log1p log2 lower lpad ltrim luhn_check
    make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter map_from_arrays
    map_from_entries map_keys map_values map_zip_with mask max max_by md5 mean median min min_by minute mod mode
    monotonically_increasing_id month monthname months_between named_struct nanvl negative next_day now nth_value
    ntile nullif nullifzero nvl nvl2 octet_length overlay parse_json parse_url percent_rank percentile
    percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer position positive pow
    power printf quarter quote radians raise_error rand randn random randstr range rank reduce regexp_count
    regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx regr_avgy
    regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace reverse right rint round
    row_number rpad rtrim schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg sec second sentences
    sequence session_user session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned shuffle sign signum
    sin sinh size skewness slice smallint some sort_array soundex space spark_partition_id split split_part sqrt
    st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid stack startswith std stddev stddev_pop stddev_samp
    str_to_map string string_agg struct substr substring substring_index sum tan tanh theta_difference
    theta_intersection theta_intersection_agg theta_sketch_agg theta_sketch_estimate theta_union theta_union_agg
    time time_diff time_trunc timestamp timestamp_micros timestamp_millis timestamp_seconds timestampadd
    timestampdiff tinyint to_binary to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz
    to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys
    transform_values translate trim trunc try_add try_aes_decrypt try_avg try_cast try_divide try_element_at
    try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply
    try_parse_json try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number try_to_time
    try_to_timestamp try_url_decode try_validate_utf8 try_variant_get typeof ucase unbase64 unhex uniform unix_date
    unix_micros unix_millis unix_seconds unix_timestamp upper url_decode url_encode user uuid validate_utf8 var_pop
    var_samp variance variant_explode variant_explode_outer variant_get version weekday weekofyear width_bucket
    window window_time xxhash64 year zeroifnull zip_with
    """.split()  # noqa: SIM905
)
"""Functions that conditions may call."""

_CHANGING = re.compile(
    r"""
      \b(curdate|monotonically_increasing_id|now|randn?|random|randstr|shuffle|spark_partition_id|uniform|uuid)[ ][(]
    | \b(current_date|current_time|current_timestamp|localtimestamp)\b
    | \b(unix_timestamp)[ ][(][ ][)]
    """,
    re.VERBOSE,
)
# Spark takes these texts, maybe with a time zone, for a time wherever it expects one.
_CHANGING_TEXT = re.compile(r"""['"]\s*(now|today|tomorrow|yesterday)(\s.*)?['"]""")
# In a query, also what names a function or a table by an expression.
_NOT_IN_QUERIES = frozenset({"identifier", *(name for names in REFUSED for name in names.split())})
# Words of the language, which may stand before a bracket and call nothing.
_WORDS = frozenset(
    """
    all and any as between by case character dec distinct div else escape filter from ilike in interval is like not
    numeric or over regexp rlike some then timestamp_ltz timestamp_ntz varchar when where
    """.split()  # noqa: SIM905
)
_OF_QUERIES = frozenset({"select", "table", "using", "values", "with"})
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+|--[^\r\n\\]*(?=[\r\n]|\Z)|/\*(?!\+)(?:(?!\*/|/\*).)*\*/)
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|"")*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<word>[A-Za-z0-9_]+)
    | (?P<sign>/\*\+|\*/|:(?!//)|-(?!-)|/(?!\*)|[|+*%&^~!=<>(),.\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "word" else ""


def unsafe_condition(text: str) -> str:
    """Return why a condition may not be given to Spark, as the end of a sentence; empty if it may.

    >>> unsafe_condition("error_class = 'wrong_type' AND lower(topic) LIKE 'a%'")
    ''

    >>> unsafe_condition("reflect('java.lang.System', 'getenv', 'HOME') = 'a'")
    'it calls reflect, which conditions may not call'
    """
    tokens, problem = _tokens(text)
    if not problem:
        problem = _calls(tokens) or _subquery(tokens)
    return problem or _tree_problem(text)


def changing(text: str) -> str:
    """Return the function or time of a condition that changes with each evaluation, or an empty text.

    >>> changing("rand() < 0.1"), changing("timestamp > CURRENT_DATE"), changing("`now` = 'now'")
    ('rand', 'current_date', '')
    """
    tokens, _ = _tokens(text)
    found = _CHANGING.search(" ".join(token.text.lower() for token in tokens if token.kind in ("word", "sign")))
    if not found and re.search("date|time", text.lower()):
        texts = (token.text.lower() for token in tokens if token.kind == "text")
        found = next(filter(None, map(_CHANGING_TEXT.fullmatch, texts)), None)
    return next(filter(None, found.groups())) if found else ""


def unsafe_query(text: str) -> str:
    """Return why a query may not be given to Spark, as the end of a sentence; empty if it may.

    Which tables it reads is for the caller to check, by their names.

    >>> unsafe_query("SELECT transform(a) USING 'cat' FROM orders")
    'it runs a program by USING'
    """
    tokens, problem = _tokens(text.strip().rstrip(";"))
    if problem:
        return problem
    for token, following in pairwise(tokens):
        if token.word == "using" and following.kind == "text":
            return "it runs a program by USING"
    if any(token.word == "table" for token in tokens):
        return "it has the word table; write a SELECT, or quote a column of that name with backticks"
    called = (token for token, following in pairwise(tokens) if following.text == "(")
    refused = (token.text for token in called if token.text.strip("`").lower() in _NOT_IN_QUERIES)
    return next((f"it calls {name}, which queries may not call" for name in refused), "")


def _tokens(text: str) -> tuple[list[_Token], str]:
    """Return the words and signs of a text, or why Spark might read others."""
    if "${" in text:
        return [], "it contains ${, which Spark takes for a variable"
    tokens, at = list[_Token](), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return [], (
                f"it can't be read safely at {text[at : at + 20]!r}; outside of quotes use ASCII letters and SQL's "
                "signs alone, and quote names with backticks"
            )
        kind = str(found.lastgroup)
        if kind == "text" and tokens and tokens[-1].word == "r" and at and text[at - 1] in "rR":
            return [], "it contains a raw string; write the string without r, with doubled backslashes"
        if kind != "space":
            tokens.append(_Token(kind, found[0]))
        at = found.end()
    return tokens, ""


def _calls(tokens: list[_Token]) -> str:
    """Return which function is called that conditions may not call; empty if there is none."""
    for before, token, following in zip([None, *tokens], tokens, tokens[1:], strict=False):
        is_called = following.text == "(" and token.kind in ("word", "name")
        is_qualified = before is not None and before.text == "."
        if is_called and (is_qualified or token.word not in ALLOWED | _WORDS):
            return f"it calls {token.text}, which conditions may not call"
    return ""


def _subquery(tokens: list[_Token]) -> str:
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.word in _OF_QUERIES or (token.word == "from" and before is not None and before.text == "("):
            return f"it has the word {token.word}; a condition is about one row, and quotes names with backticks"
    return ""


def _tree_problem(text: str) -> str:
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(text, read="spark")
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        return f"it isn't valid SQL: {str(error).splitlines()[0].rstrip('. ')}"
    if tree.find(exp.Query, exp.Table, exp.Command, exp.DDL, exp.DML) is not None:
        return "it isn't one expression over the columns of a row"
    return ""
