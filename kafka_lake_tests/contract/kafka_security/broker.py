"""A Kafka broker with an authorizer and a listener for each security protocol, and what a test asks of it as admin."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafka_lake.common.processes import ServerProcess, free_port, port_open
from kafka_lake.engine.jars import jars_classpath
from kafka_lake.engine.java import find_java
from kafka_lake_tests.contract.kafka_security.certificates import Authority, Identity

LISTENERS = ("PLAINTEXT", "SSL", "MTLS", "EXPIRED", "SASL_SSL", "KERBEROS", "CONTROLLER")
_KINDS = {"MTLS": "SSL", "EXPIRED": "SSL", "KERBEROS": "SASL_PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
_SECURITY = "org.apache.kafka.common.security"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{CONTROLLER}
inter.broker.listener.name=PLAINTEXT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=10485760
log.dirs={logs}
sasl.enabled.mechanisms={mechanisms}
ssl.keystore.type=PEM
ssl.keystore.location={store}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
ssl.principal.mapping.rules=RULE:^CN=([^,]*).*$/$1/
listener.name.mtls.ssl.client.auth=required
listener.name.expired.ssl.keystore.type=PEM
listener.name.expired.ssl.keystore.location={expired_store}
"""


@dataclass(frozen=True)
class SecureBroker:
    """A running broker.

    Args:
        ports: By listener.
        authority: The CA of its certificates.
        log: The broker's log.
        admin: Who may do everything.
    """

    ports: Mapping[str, int]
    authority: Authority
    log: Path
    admin: AdminClient

    def address(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}"

    def create(self, topic: str, partitions: int = 2) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)

    def send(self, topic: str, values: Sequence[bytes], partitions: int = 2) -> None:
        producer = Producer({"bootstrap.servers": self.address("PLAINTEXT"), "log_level": 0, "linger.ms": 0})
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % partitions)
        assert producer.flush(20) == 0

    def grant(
        self, principal: str, operation: AclOperation, name: str, kind: ResourceType = ResourceType.TOPIC
    ) -> None:
        """Allow one operation on one topic, group or cluster."""
        binding = AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{principal}", "*", operation, AclPermissionType.ALLOW
        )
        self.admin.create_acls([binding])[binding].result(20)

    def revoke(self, principal: str) -> None:
        """Take all rights of a principal away."""
        every = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{principal}", None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        self.admin.delete_acls([every])[every].result(20)

    def set_password(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
        kind = ScramMechanism.SCRAM_SHA_512 if mechanism == "SCRAM-SHA-512" else ScramMechanism.SCRAM_SHA_256
        change = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 4096), password.encode())
        for future in self.admin.alter_user_scram_credentials([change]).values():
            future.result(20)


def _store(identity: Identity) -> Path:
    path = Path(identity.key_file()).with_name(f"{identity.name}.store.pem")
    path.write_text(identity.key_pem() + identity.certificate_pem)
    return path


def _listener(listener: str, mechanism: str, **more: str) -> list[str]:
    prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}"
    return [f"{prefix}.{name.replace('_', '.')}={value}" for name, value in more.items()]


@contextmanager
def running_broker(
    folder: Path,
    authority: Authority,
    users: Mapping[str, str],
    tokens: str | None = None,
    keytab: Path | None = None,
    java_options: Sequence[str] = (),
) -> Iterator[SecureBroker]:
    """Run a broker whose users have all of PLAIN and SCRAM.

    Args:
        folder: For its data.
        authority: Signs its certificates.
        users: Passwords by name; those of SCRAM can be changed later.
        tokens: Address of a token server, for OAUTHBEARER; None for none.
        keytab: Of the broker's Kerberos principal, for GSSAPI; None for none.
        java_options: Further options of its JVM.
    """
    listeners = [listener for listener in LISTENERS if listener != "KERBEROS" or keytab]
    ports = {listener: free_port() for listener in listeners}
    mechanisms = ["PLAIN", *SCRAM, *(["OAUTHBEARER"] if tokens else [])]
    identity, expired = authority.issue("broker"), authority.issue("broker", last_day=-1)
    text = _PROPERTIES.format(
        **ports,
        logs=folder / "logs",
        mechanisms=",".join(mechanisms),
        store=_store(identity),
        expired_store=_store(expired),
        ca=authority.file,
    )
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    where = ",".join(f"{value}://127.0.0.1:{port}" for value, port in ports.items())
    reported = ",".join(f"{value}://localhost:{port}" for value, port in ports.items() if value != "CONTROLLER")
    kinds = ",".join(f"{listener}:{_KINDS.get(listener, listener)}" for listener in listeners)
    lines = [
        f"listeners={where}",
        f"advertised.listeners={reported}",
        f"listener.security.protocol.map={kinds}",
        *_listener("SASL_SSL", "plain", sasl_jaas_config=f"{_SECURITY}.plain.PlainLoginModule required {known};"),
    ]
    for mechanism in SCRAM:
        lines += _listener("SASL_SSL", mechanism, sasl_jaas_config=f"{_SECURITY}.scram.ScramLoginModule required;")
        # Long enough for a quiet test, short enough that one sees a changed password.
        lines += _listener("SASL_SSL", mechanism, connections_max_reauth_ms="3000")
    options = list(java_options)
    if tokens:
        lines += _listener(
            "SASL_SSL",
            "oauthbearer",
            sasl_jaas_config=f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
            sasl_server_callback_handler_class=f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        )
        lines += [f"sasl.oauthbearer.jwks.endpoint.url={tokens}/jwks", "sasl.oauthbearer.expected.audience=kafka"]
        lines += ["sasl.oauthbearer.expected.issuer=https://idp.example"]
        options.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens}/jwks")
    if keytab:
        jaas = (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true isInitiator=false "
            f'keyTab="{keytab}" principal="kafka/localhost@LAKE.TEST";'
        )
        lines += ["listener.name.kerberos.sasl.enabled.mechanisms=GSSAPI", "sasl.kerberos.service.name=kafka"]
        lines += _listener("KERBEROS", "gssapi", sasl_jaas_config=jaas)
    settings = folder / "server.properties"
    settings.write_text(text + "\n".join(lines) + "\n")
    java = [str(find_java() / "bin" / "java"), "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options]
    java += ["-Dlog4j2.level=WARN", "-cp", jars_classpath("broker")]
    tool = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(settings)]
    for user, password in users.items():
        for mechanism in SCRAM:
            tool += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
    done = subprocess.run(tool, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    address = f"localhost:{ports['PLAINTEXT']}"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.ms": 50})
    broker = SecureBroker(ports, authority, folder / "broker.log", admin)
    server = ServerProcess([*java, "-Xmx384m", "kafka.Kafka", str(settings)], log=broker.log)

    def ready() -> bool:
        try:
            return port_open(ports["PLAINTEXT"]) and bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    server.start(ready, 60)
    try:
        yield broker
    finally:
        server.kill()
