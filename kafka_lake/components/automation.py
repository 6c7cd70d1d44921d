"""When tables that are made from topic tables are made again."""

import dagster as dg


def follow_sources() -> dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]:
    """Return a condition: an asset is made again once what it is made from has changed, and is never left behind.

    It is `dagster.AutomationCondition.eager()` but for one thing. That one takes an asset for current as soon as it is
    made after its source has changed, though it may have read the source before: it would stay stale until the next
    change. Here a change is made up for only by what was asked for after it.
    """
    eager, changed = dg.AutomationCondition.eager(), dg.AutomationCondition.any_deps_updated()
    # An evaluation learns together of what the one before asked for and of what has changed since.
    asked = dg.AutomationCondition.newly_requested() & ~changed
    handled = (asked | dg.AutomationCondition.initial_evaluation()).with_label("handled")
    return eager.replace("handled", handled).with_label("follow_sources")
