"""Which tests belong to `make test`, and which to `make exhaustive`, the longer lane that runs at night."""

from typing import Any

import pytest


def exhaustive(*values: Any, id: str | None = None) -> Any:
    """Return the parameters of one more case, for `make exhaustive` alone.

    Another case of the same test, in `make test`, shows the promise; this one shows it once more in another form.

    Args:
        values: The values of the parameters, one for each name.
        id: The name of the case; pytest's own if None.
    """
    return pytest.param(*values, id=id, marks=pytest.mark.exhaustive)
