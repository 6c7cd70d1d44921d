"""A Kerberos realm on 127.0.0.1 for a test: MIT's KDC, with principals and their keytabs.

From Debian's packages krb5-kdc, krb5-admin-server and krb5-user, installed or only unpacked: the folder that they are
unpacked in is given by the variable ``KRB5_ROOT``.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_lake.common.processes import ServerProcess, free_port

REALM = "LAKE.TEST"
_ROOT = Path(os.environ.get("KRB5_ROOT", "/"))

_CLIENT = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  permitted_enctypes = aes256-cts-hmac-sha1-96 aes128-cts-hmac-sha1-96
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  localhost = {realm}
"""
_SERVER = """\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
  }}
[dbmodules]
  {realm} = {{
    db_library = db2
  }}
  db_module_dir = {modules}
"""


@dataclass(frozen=True)
class Realm:
    """A running KDC.

    Args:
        folder: Its files.
        environment: Variables for its clients, and for the programs of MIT Kerberos.
    """

    folder: Path
    environment: Mapping[str, str]

    @property
    def configuration(self) -> Path:
        return self.folder / "krb5.conf"

    def keytab(self, principal: str) -> Path:
        """Add a principal, and return the file of its keys."""
        path = self.folder / f"{principal.replace('/', '-')}.keytab"
        for request in (f"addprinc -randkey {principal}", f"ktadd -k {path} {principal}"):
            self.run(program("kadmin.local"), "-r", REALM, "-q", request)
        assert path.exists()
        return path

    def run(self, *command: str) -> None:
        done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def program(name: str) -> str:
    """Return the path of one of MIT Kerberos' programs."""
    places = os.pathsep.join(str(_ROOT / folder) for folder in ("usr/sbin", "usr/bin"))
    found = shutil.which(name, path=places)
    assert found, f"{name} isn't in {places}. Debian: apt-get install krb5-kdc krb5-admin-server krb5-user"
    return found


@contextmanager
def running_realm(folder: Path) -> Iterator[Realm]:
    """Run a KDC with an empty realm."""
    port = free_port()
    libraries = _ROOT / "usr/lib/x86_64-linux-gnu"
    (folder / "krb5.conf").write_text(_CLIENT.format(realm=REALM, port=port))
    modules = libraries / "krb5/plugins/kdb"
    (folder / "kdc.conf").write_text(_SERVER.format(realm=REALM, port=port, folder=folder, modules=modules))
    environment = {
        "KRB5_CONFIG": str(folder / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        "KRB5CCNAME": f"FILE:{folder / 'tickets'}",
    }
    if Path("/") != _ROOT:
        # Those that are there already come first.
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([os.environ.get("LD_LIBRARY_PATH", ""), str(libraries)])
    realm = Realm(folder, environment)
    realm.run(program("kdb5_util"), "create", "-s", "-r", REALM, "-P", "hush-master")
    server = ServerProcess([program("krb5kdc"), "-n", "-r", REALM], log=folder / "kdc.log", env=environment)

    def ready() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    server.start(ready, 20)
    try:
        yield realm
    finally:
        server.kill()
