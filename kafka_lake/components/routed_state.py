"""What Dagster keeps of the tables that values have got: so that definitions load without the catalog."""

import json
from collections.abc import Mapping
from pathlib import Path

from dagster.components.utils.project_paths import get_local_state_path

from kafka_lake.common.whole_file import write_whole
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.routes.by_value import PREFIX


def keep(state: Path, properties: Mapping[str, str]) -> None:
    """Write to a file what a topic's own table tells of tables that values have.

    Args:
        properties: Of the table; others than those are left out.
    """
    told = {key: text for key, text in properties.items() if key.startswith(PREFIX)}
    write_whole(state, json.dumps(told, indent=1))


def kept(state: Path) -> Mapping[str, str]:
    """Return what `keep` wrote; nothing if it hasn't yet.

    Raises:
        ConfigurationError: If the file is damaged.
    """
    try:
        found = json.loads(state.read_text()) if state.exists() else {}
        if not isinstance(found, dict) or not all(isinstance(json.loads(text), dict) for text in found.values()):
            raise TypeError("that is no mapping")
    except (ValueError, TypeError, OSError) as error:
        raise ConfigurationError(
            f"{state} doesn't have the tables that values of a topic have: {type(error).__name__}.",
            "Delete that file, and run `kafka-lake topics refresh`. Until then these tables are no assets.",
        ) from error
    return found


def state_of_document(project_root: Path, document: Path, topic: str) -> Path:
    """Return where Dagster keeps that, for the topic of a document.

    Args:
        topic: The topic's name among those of all clusters.
    """
    # The same on each machine.
    where = document.relative_to(project_root) if document.is_relative_to(project_root) else document
    return get_local_state_path(f"KafkaTopic[{where.as_posix()} of {topic}]", project_root)
