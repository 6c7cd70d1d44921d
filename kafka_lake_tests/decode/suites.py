"""What a user's module has: a suite of Great Expectations and schemas of Pandera."""

import great_expectations as gx
import great_expectations.expectations as gxe
import pandera.pandas
import pandera.pyspark as pa
import pyspark.sql.types as T

orders = gx.ExpectationSuite(
    name="orders",
    expectations=[
        gxe.ExpectColumnValuesToNotBeNull(column="id"),
        gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=0),
        gxe.ExpectColumnValuesToMatchRegex(column="who.email", regex="@"),
        gxe.ExpectColumnMeanToBeBetween(column="tax", min_value=2),
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A="total", column_B="tax", or_equal=True),
        gxe.ExpectTableRowCountToBeBetween(min_value=1),
    ],
)
amounts = gx.ExpectationSuite("amounts", [gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=0)])
later = gx.ExpectationSuite(name="later", expectations=[gxe.ExpectColumnValuesToNotBeNull(column="coupon")])
text = "orders"


class Orders(pa.DataFrameModel):
    id: T.LongType() = pa.Field(nullable=False)  # type: ignore[valid-type]
    amount: T.DoubleType() = pa.Field(ge=0, le=100, nullable=True)  # type: ignore[valid-type]
    total: T.DoubleType() = pa.Field(nullable=True)  # type: ignore[valid-type]
    tax: T.DoubleType() = pa.Field(nullable=True)  # type: ignore[valid-type]

    @pa.dataframe_check
    def total_covers_tax(cls, data):  # type: ignore[no-untyped-def]
        return data.filter("total < tax").isEmpty()


strict = pa.DataFrameSchema({"id": pa.Column(T.LongType())}, name="strict", strict=True)
told = pa.DataFrameSchema({"v": pa.Column(T.LongType(), nullable=False)}, name="told")
few = pa.DataFrameSchema({"Id": pa.Column(T.LongType(), pa.Check.le(1), nullable=True)}, name="few")
missing = pa.DataFrameSchema({"coupon": pa.Column(T.StringType())}, name="missing")
converted = pa.DataFrameSchema({"code": pa.Column(T.LongType(), coerce=True)}, name="converted")
empty = gx.ExpectationSuite(name="empty")
nothing_asked = pa.DataFrameSchema({}, name="nothing_asked")
of_pandas = pandera.pandas.DataFrameSchema({"id": pandera.pandas.Column(int)})
