"""A Glue catalog of moto's that keeps what Glue promises: a table changes only if it is at the version that is named.

moto takes any ``VersionId`` of ``UpdateTable`` for right
(https://docs.aws.amazon.com/glue/latest/webapi/API_UpdateTable.html). ``python -m … PORT`` serves on 127.0.0.1.
"""

import io
import json
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.glue.models import glue_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

from kafka_lake.common.processes import HOST

REGION = "us-east-1"

_CONFLICT = {
    "__type": "ConcurrentModificationException",
    "Message": "Update table failed due to concurrent modifications.",
}

_WSGI = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneVersionOnly:
    """Lets one ``UpdateTable`` through at a time, and none that names another version than the table's.

    Args:
        app: moto.
    """

    def __init__(self, app: _WSGI) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_X_AMZ_TARGET") != "AWSGlue.UpdateTable":
            return self._app(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with self._lock:
            if _is_stale(json.loads(body)):
                start_response("400 Bad Request", [("Content-Type", "application/x-amz-json-1.1")])
                return [json.dumps(_CONFLICT).encode()]
            return list(self._app(environ, start_response))


def _is_stale(request: dict[str, Any]) -> bool:
    asked = request.get("VersionId")
    database = glue_backends[DEFAULT_ACCOUNT_ID][REGION].databases.get(request["DatabaseName"])
    table = database.tables.get(request["TableInput"]["Name"]) if database else None
    return asked is not None and table is not None and str(table.as_dict()["VersionId"]) != asked


def main() -> None:
    app = OneVersionOnly(DomainDispatcherApplication(create_backend_app))
    run_simple(HOST, int(sys.argv[1]), app, threaded=True)


if __name__ == "__main__":
    main()
