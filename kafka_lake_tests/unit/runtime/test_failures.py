"""What a run reports of its dead letters: of each class a count and one sample."""

import pyarrow as pa

from kafka_lake.formats.task.batches import ERROR_CLASS, ERROR_MESSAGE
from kafka_lake.runtime.task.report import classes_of_batch


def test_sample_is_200_characters_of_first_record_of_class() -> None:
    failed = pa.RecordBatch.from_pydict(
        {
            "partition": [1, 0, 0],
            "offset": pa.array([5, 9, 7], pa.int64()),
            "value": pa.array([b"other", b"later", "ß".encode() * 300], pa.binary()),
            ERROR_CLASS: ["not_json", "not_json", "not_json"],
            ERROR_MESSAGE: ["a", "b", "c"],
        }
    )
    (failure,) = classes_of_batch(failed)
    assert (failure.name, failure.count) == ("not_json", 3)
    assert (failure.partition, failure.offset, failure.message) == (0, 7, "c")
    assert failure.value == "ß" * 200


def test_each_class_has_its_own_count_and_sample() -> None:
    failed = pa.RecordBatch.from_pydict(
        {
            "partition": [0, 0, 0],
            "offset": pa.array([1, 2, 3], pa.int64()),
            "value": pa.array([b"{", None, b"\xff"], pa.binary()),
            ERROR_CLASS: ["not_json", "no_key", "not_json"],
            ERROR_MESSAGE: ["a", "b", "c"],
        }
    )
    found = {failure.name: (failure.count, failure.offset, failure.value) for failure in classes_of_batch(failed)}
    assert found == {"not_json": (2, 1, "{"), "no_key": (1, 2, "")}
