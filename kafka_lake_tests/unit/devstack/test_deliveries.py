"""The demo's deliveries: repeatable, by a schema whose second version is a safe change of the first."""

import io
import json
import random
from datetime import UTC, datetime, timedelta

import fastavro
import pytest

from examples.pizza_shop import deliveries
from kafka_lake.devstack.running import Ports, use_registry
from kafka_lake.errors import KafkaLakeError
from kafka_lake.kafka.registry import properties_from_env

NOON = datetime(2026, 11, 21, 12, 34, 56, 123_999, UTC)
HOUR = timedelta(hours=1)


def made(number: int = 100, seed: int = 7, first_id: int = 1) -> list[deliveries.Delivery]:
    return list(deliveries.generate_deliveries(number, seed, first_id, NOON - HOUR, NOON))


def parsed(version: deliveries.Version) -> dict:
    return fastavro.parse_schema(json.loads(deliveries.schema(version)))


def test_same_arguments_give_the_same_deliveries() -> None:
    assert made() == made()
    assert made() != made(seed=8)


def test_deliveries_are_numbered_and_dated_up_to_the_end() -> None:
    found = made(3, first_id=10)
    assert [delivery.order_id for delivery in found] == [10, 11, 12]
    assert [delivery.delivered_at for delivery in found] == [
        datetime(2026, 11, 21, 11, 54, 56, 123_000, UTC),
        datetime(2026, 11, 21, 12, 14, 56, 123_000, UTC),
        datetime(2026, 11, 21, 12, 34, 56, 123_000, UTC),
    ]
    assert all(timedelta(0) < delivery.delivered_at - delivery.left_at < HOUR for delivery in found)


def test_some_have_a_note_and_some_a_tip() -> None:
    found = made(500)
    assert 0 < sum(delivery.note is not None for delivery in found) < 250
    assert 0 < sum(delivery.tip is not None for delivery in found) < 500
    assert {delivery.vehicle for delivery in found} == {"foot", "bike", "scooter", "car"}


@pytest.mark.parametrize("reader", [1, 2])
@pytest.mark.parametrize("writer", [1, 2])
def test_both_versions_read_what_either_wrote(writer: deliveries.Version, reader: deliveries.Version) -> None:
    delivery = next(answer for answer in made() if answer.tip)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed(writer), deliveries.datum(delivery))
    out.seek(0)
    read = fastavro.schemaless_reader(out, parsed(writer), parsed(reader))
    assert read.pop("tip", "no such field") == {1: "no such field", 2: delivery.tip if writer == 2 else None}[reader]
    assert read == {
        "courier": {"name": delivery.courier, "vehicle": delivery.vehicle},
        "price": delivery.price,
        "left_at": delivery.left_at,
        "delivered_at": delivery.delivered_at,
        "note": delivery.note,
    }


def test_money_has_two_digits_after_the_point() -> None:
    rng = random.Random(1)
    for number in range(1_000):
        delivery = deliveries.generate_delivery(rng, number, NOON)
        assert delivery.price.as_tuple().exponent == -2
        assert delivery.tip is None or delivery.tip.as_tuple().exponent == -2


@pytest.mark.processes
def test_no_registry_is_an_error_that_names_subject_and_address() -> None:
    with pytest.raises(KafkaLakeError, match=r"version 1 of lost-value .* at http://127\.0\.0\.1:9"):
        deliveries.DeliveryProducer("127.0.0.1:9", "lost", "http://127.0.0.1:9", 1)


def test_the_embedded_registry_gets_no_credentials_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", "https://registry.example.com")
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO", "user:password")
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY_PORT", "3457")
    use_registry("http://127.0.0.1:3457/apis/ccompat/v7")
    assert properties_from_env() == {"url": "http://127.0.0.1:3457/apis/ccompat/v7"}
    assert Ports.from_env().registry.number == 3457
    use_registry("")
    assert properties_from_env() == {}
