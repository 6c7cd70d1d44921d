"""Values of records compared with those of rows."""

from pyiceberg.types import DoubleType, NestedField

from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.values import decode_json, differences, fields_of


def test_number_beyond_doubles_differs_from_every_row() -> None:
    fields = fields_of([NestedField(1, "price", DoubleType())], {}, {})
    value = decode_json(b'{"price": 1%s}' % (b"0" * 400))
    assert list(differences(value, {"price": 1.0}, fields, TopicTable("orders"))) == ["price"]
