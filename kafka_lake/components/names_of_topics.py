"""The names of a cluster's topics as a file of the project keeps them: so that definitions load without the brokers."""

import json
from collections.abc import Sequence
from pathlib import Path

from kafka_lake.common.whole_file import write_whole
from kafka_lake.errors import ConfigurationError


def keep_names(state: Path, names: Sequence[str]) -> None:
    """Write the names to a file.

    Args:
        names: Those of all topics of the cluster: which of them are meant is for the document to say.
    """
    write_whole(state, json.dumps({"topics": list(names)}))


def kept_names(state: Path, document: str) -> tuple[str, ...]:
    """Return the names that `keep_names` wrote.

    Args:
        state: The file, which is there.
        document: Whose it is, as users name it.

    Raises:
        ConfigurationError: If the file has others, or is damaged.
    """
    try:
        names = json.loads(state.read_text())["topics"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("that is no list of names")
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ConfigurationError(
            f"{document}: {state} doesn't have the names of the cluster's topics: {type(error).__name__}.",
            "Delete that file, and run `kafka-lake topics refresh`. Until then no topic is known.",
        ) from error
    return tuple(names)
