"""What deploy/values.yaml and docs/spark-clusters.md configure, checked with Kubernetes' own tools; nothing is run.

The pod of a run is the one that Dagster's own launcher makes of the values.
"""

import json
import re
import subprocess
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kubernetes.client
import pytest
import yaml
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import DagsterK8sJobConfig, construct_dagster_k8s_job

from kafka_lake_tests.contract.dagster.composed import DEPLOY, ROOT

pytestmark = pytest.mark.contract

VALUES: dict[str, Any] = yaml.safe_load((DEPLOY / "values.yaml").read_text())
_TOOLS = ("yamllint==1.38.0", "kubernetes-validate==1.37.0")
_RULES = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, braces: {max-spaces-inside: 1}}}"
_OLDEST, _NEWEST = "1.30", "1.37"

Validate = Callable[[Mapping[str, Any]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment of their own."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    done = subprocess.run([folder / "bin" / "pip", "install", "--quiet", *_TOOLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(params=[_OLDEST, _NEWEST])
def validate(tools: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Validate:
    """Return a function that has a resource validated, names that its kind doesn't have refused."""

    def run(resource: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "resource.yaml"
        file.write_text(json.dumps(resource))
        command = [tools / "kubernetes-validate", "--strict", "--no-warn", "-k", request.param, file]
        return subprocess.run(command, capture_output=True, text=True)

    return run


def of_clusters_page(kind: str) -> dict[str, Any]:
    """Return a resource as docs/spark-clusters.md has it."""
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs" / "spark-clusters.md").read_text(), re.MULTILINE | re.DOTALL
    )
    resources = [resource for block in blocks for resource in yaml.safe_load_all(block) if "apiVersion" in resource]
    (found,) = (resource for resource in resources if resource["kind"] == kind)
    return dict(found)


def _snake(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name): value for name, value in settings.items()}


def job_of_a_run(launcher: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the job that Dagster makes for a run, as its chart tells the launcher of the values."""
    (deployment,) = VALUES["dagster-user-deployments"]["deployments"]
    of_location = {
        "env_vars": [f"{name}={value}" for name, value in deployment["env"].items()],
        "env_secrets": [secret["name"] for secret in deployment["envSecrets"]],
        "volumes": deployment["volumes"],
        "volume_mounts": deployment["volumeMounts"],
        "resources": deployment["resources"],
        "run_k8s_config": {"pod_spec_config": {"security_context": deployment["podSecurityContext"]}},
    }
    of_launcher = {
        "image_pull_policy": launcher["imagePullPolicy"],
        "run_k8s_config": _snake(launcher["runK8sConfig"]),
    }
    context = K8sContainerContext.create_from_config({"k8s": of_launcher}).merge(
        K8sContainerContext.create_from_config({"k8s": of_location})
    )
    image = deployment["image"]
    job = construct_dagster_k8s_job(
        DagsterK8sJobConfig(
            job_image=f"{image['repository']}:{image['tag']}",
            dagster_home="/opt/dagster/dagster_home",
            instance_config_map="dagster-instance",
            postgres_password_secret=VALUES["global"]["postgresqlSecretName"],
        ),
        ["dagster", "api", "execute_run"],
        "dagster-run-1",
        context.run_k8s_config,
    )
    made: Mapping[str, Any] = kubernetes.client.ApiClient().sanitize_for_serialization(job)
    return made


def test_yamllint_finds_nothing(tools: Path) -> None:
    files = [*DEPLOY.glob("*.yaml"), *DEPLOY.rglob("defs.yaml")]
    assert DEPLOY / "values.yaml" in files
    done = subprocess.run([tools / "yamllint", "-s", "-d", _RULES, *files], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_run_pod_matches_helm_values(validate: Validate) -> None:
    launcher = VALUES["runLauncher"]["config"]["k8sRunLauncher"]
    made = job_of_a_run(launcher)
    done = validate(made)
    assert done.returncode == 0, done.stdout + done.stderr
    assert made["spec"]["ttlSecondsAfterFinished"] == 86400
    pod = made["spec"]["template"]["spec"]
    assert (pod["terminationGracePeriodSeconds"], pod["securityContext"]["runAsUser"]) == (60, 1000)
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "3Gi"}
    assert {"mountPath": "/certificates", "name": "certificates", "readOnly": True} in container["volumeMounts"]
    assert {"secretRef": {"name": "kafka-lake"}} in container["envFrom"]


def test_a_name_that_kubernetes_does_not_know_is_noticed() -> None:
    with pytest.raises(Exception, match="terminationGrace"):
        job_of_a_run({"imagePullPolicy": "Always", "runK8sConfig": {"podSpecConfig": {"terminationGrace": 60}}})


@pytest.mark.parametrize("kind", ["Pod", "Role", "RoleBinding"])
def test_documented_spark_executor_settings_are_valid(validate: Validate, kind: str) -> None:
    resource = of_clusters_page(kind)
    if kind == "Pod":
        # Spark fills in the rest of its template.
        resource["spec"] = {**resource["spec"], "containers": [{"name": "spark-kubernetes-executor"}]}
    done = validate(resource)
    assert done.returncode == 0, done.stdout + done.stderr
    misspelt = {**resource, "metadatas": {}}
    assert validate(misspelt).returncode != 0
