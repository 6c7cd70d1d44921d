"""The demo's gold table: the stores that sell the most, made again from the orders whenever those change."""

import dagster as dg

from kafka_lake.components.automation import follow_sources
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.spark import SparkResource

_ORDERS = ("pizza", "completed_pizzas")
_TOP_STORES = ("pizza", "top_stores")


@dg.asset(
    key=list(_TOP_STORES),
    deps=[list(_ORDERS)],
    group_name="pizza",
    owners=["team:pizza"],
    kinds={"iceberg", "spark"},
    automation_condition=follow_sources(),
    pool="table_pizza_top_stores",
)
def top_stores(catalog: CatalogResource, spark: SparkResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Stores by number of pizzas, most first."""
    lake = catalog.open()
    orders, target = lake.spark_name(_ORDERS), lake.spark_name(_TOP_STORES)
    ranked = spark.spark_session.sql(
        f"SELECT store_id, count(*) AS pizzas, max(date_ordered) AS last_order FROM {orders} "
        "GROUP BY store_id ORDER BY pizzas DESC, store_id"
    )
    ranked.coalesce(1).writeTo(target).using("iceberg").createOrReplace()
    table = lake.table(_TOP_STORES)
    stores = table.scan().to_arrow().sort_by([("pizzas", "descending")]).to_pylist() if table else []
    top = "\n".join(f"| {s['store_id']} | {s['pizzas']} |" for s in stores[:10])
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(stores),
            "dagster/table_name": f"{lake.name}.pizza.top_stores",
            "top_10": dg.MetadataValue.md(f"| store | pizzas |\n|---|---|\n{top}"),
        }
    )
