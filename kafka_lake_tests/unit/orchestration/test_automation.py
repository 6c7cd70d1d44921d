"""Assets that are materialized after their sources: two changes during one slow run are both taken."""

import dagster as dg

from kafka_lake.orchestration.assets import follow_sources

SOURCE = dg.AssetKey(["pizza", "completed_pizzas"])


@dg.asset(key=SOURCE)
def completed_pizzas() -> None: ...


@dg.asset(deps=[SOURCE], automation_condition=follow_sources())
def below() -> None: ...


class Automation:
    """Dagster's evaluation, tick by tick."""

    def __init__(self, asset: dg.AssetsDefinition, instance: dg.DagsterInstance) -> None:
        unused = {key: dg.ResourceDefinition.none_resource() for key in ("catalog", "spark")}
        self._definitions = dg.Definitions([completed_pizzas, asset], resources=unused)
        self._instance = instance
        self._cursor = None

    def requests(self) -> int:
        result = dg.evaluate_automation_conditions(self._definitions, self._instance, cursor=self._cursor)
        self._cursor = result.cursor
        return result.total_requested

    def made(self, key: dg.AssetKey) -> None:
        self._instance.report_runless_asset_event(dg.AssetMaterialization(key))


def test_a_table_read_before_a_change_and_written_after_it_is_materialized_again() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        automation = Automation(below, instance)
        automation.made(SOURCE)
        automation.made(below.key)
        assert automation.requests() == 0
        automation.made(SOURCE)
        assert automation.requests() == 1
        automation.made(SOURCE)
        automation.made(below.key)
        assert automation.requests() == 1
        automation.made(below.key)
        assert automation.requests() == 0
        assert automation.requests() == 0
