#!/bin/bash
# Runs a command as it is. `executor` alone is Spark's on Kubernetes, which says by variables what to start:
# https://spark.apache.org/docs/4.1.3/running-on-kubernetes.html
set -euo pipefail

if [ "${1:-}" != executor ]; then
  exec "$@"
fi

# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on, in this order, each one argument.
options=()
number=0
while name="SPARK_JAVA_OPT_$number"; [ -n "${!name+set}" ]; do
  options+=("${!name}")
  number=$((number + 1))
done

exec "$JAVA_HOME/bin/java" "${options[@]}" \
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
