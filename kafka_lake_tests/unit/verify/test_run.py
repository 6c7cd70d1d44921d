"""What `verify` needs of DuckDB."""

import pyarrow as pa

from kafka_lake.verify.run import bounded_database


def test_join_of_many_places_with_few_rows_holds_the_places():
    database = bounded_database()
    database.register("wide_rows", pa.table({"o": range(10), "content": ["a long text"] * 10}))
    database.register("places", pa.table({"o": range(100_000)}))

    plan = database.sql("EXPLAIN SELECT r.* FROM wide_rows AS r SEMI JOIN places AS p ON r.o = p.o").fetchall()[0][1]

    assert "Join Type: SEMI" in plan
