"""By which conditions a table of a route has got its records, as its commits tell."""

from collections.abc import Sequence

from kafka_lake.ingest.route import When
from kafka_lake.ingest.routes.given import conditions_of
from kafka_lake.ingest.topic_table import Route, RouteBy, TopicTable

ORDER, CLICK = When(field="type", values=("order",)), When(field="type", values=("click",))
BY = RouteBy("field", "type", TopicTable("t"), known=(("b", "lake", "b"),))


def spec(whens: Sequence[When] = (), all_matches: bool = False, by: RouteBy | None = None) -> TopicTable:
    routes = tuple(Route(when, TopicTable("t", "n", f"to_{number}")) for number, when in enumerate(whens))
    return TopicTable("t", "n", "own", routes=routes, all_matches=all_matches, route_by=by)


def told(number: int, whens: Sequence[When] = (), all_matches: bool = False, by: RouteBy | None = None) -> str:
    return conditions_of(spec(whens, all_matches, by), number, {})


def test_routes_before_count_unless_a_record_goes_to_each() -> None:
    assert told(1, [ORDER, CLICK]) != told(0, [CLICK])
    assert told(0, [CLICK, ORDER]) == told(0, [CLICK])
    assert told(1, [ORDER, CLICK], all_matches=True) == told(0, [CLICK])


def test_other_values_tables_dont_count_and_the_values_source_does() -> None:
    more = RouteBy("field", "type", TopicTable("t"), known=(("a", "lake", "a"), *BY.known))
    assert told(1, by=more) == told(0, by=BY)
    assert told(0, by=RouteBy("header", "type", TopicTable("t"), known=BY.known)) != told(0, by=BY)
    assert told(0, by=RouteBy("field", "type", TopicTable("t"), known=(("c", "lake", "b"),))) != told(0, by=BY)
    # The values of records that no route takes are those that count.
    assert told(1, [ORDER], by=BY) != told(0, by=BY)
    assert told(1, [ORDER], by=BY, all_matches=True) == told(0, by=BY)
    sources = [RouteBy("source_table", each, TopicTable("t"), known=BY.known) for each in ("debezium", "maxwell")]
    assert told(0, by=sources[0]) != told(0, by=sources[1])


def test_ids_count_that_the_registry_doesnt_know_as_it_may_later() -> None:
    schemas = spec([When(schema=("shop.*",)), ORDER])
    known, unknown, others = {b"\0": "shop.Order"}, {b"\1": None}, {b"\2": None}
    assert conditions_of(schemas, 0, {}) == conditions_of(schemas, 0, known)
    assert len({conditions_of(schemas, 0, each) for each in (known, unknown, others)}) == 3
    assert conditions_of(schemas, 1, unknown) != conditions_of(schemas, 1, known)
    assert conditions_of(spec([ORDER]), 0, unknown) == conditions_of(spec([ORDER]), 0, {})
    assert told(0, [When(schema=("a",))]) != told(0, [When(schema=("b",))])
