"""What the five rules of rows say, for Great Expectations and for Pandera."""

import great_expectations as gx
import great_expectations.expectations as gxe
import pandera.pyspark as pa
import pyspark.sql.types as T

from kafka_lake.demo.orders import CHEESES

expectations = gx.ExpectationSuite(
    name="orders",
    expectations=[
        gxe.ExpectColumnValuesToNotBeNull(column="store_id"),
        gxe.ExpectColumnValuesToBeInSet(column="cheese", value_set=list(CHEESES)),
        gxe.ExpectColumnValuesToBeBetween(column="total_price", min_value=0, max_value=10_000),
        gxe.ExpectColumnValuesToMatchRegex(column="sauce", regex="^[A-Za-z ]+$"),
        gxe.ExpectColumnValuesToBeBetween(column="order_id", min_value=0),
    ],
)
schema = pa.DataFrameSchema(
    {
        "store_id": pa.Column(T.IntegerType(), nullable=False),
        "cheese": pa.Column(T.StringType(), pa.Check.isin(list(CHEESES)), nullable=True),
        "total_price": pa.Column(T.DoubleType(), pa.Check.in_range(0, 10_000), nullable=True),
        "sauce": pa.Column(T.StringType(), pa.Check.str_startswith(""), nullable=True),
        "order_id": pa.Column(T.LongType(), pa.Check.ge(0), nullable=True),
    },
    name="orders",
)
