"""Cases for `make exhaustive` alone. Another case of the same test, in `make test`, shows the promise."""

from typing import Any

import pytest


def exhaustive(*values: Any, id: str | None = None) -> Any:
    """Return the parameters of such a case.

    Args:
        values: The values of the parameters, one for each name.
        id: The name of the case; pytest's own if None.
    """
    return pytest.param(*values, id=id, marks=pytest.mark.exhaustive)
