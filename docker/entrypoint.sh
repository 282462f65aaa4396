#!/bin/bash
# What a container of the engine image runs, by its first argument:
#   executor      a Spark executor; Spark sets the SPARK_* variables and passes no other argument
#   driver ...    the driver of a Logkeep run
#   anything else is a command: `logkeep --help`, `python3`, `bash`
set -euo pipefail

# A platform may run the container as a user of its own choice (OpenShift does). Java takes the user's name from the
# passwd file, and Spark does not start without a name: this library puts a file of ours in its place.
if ! getent passwd "$(id -u)" > /dev/null; then
  passwd="${TMPDIR:-/tmp}/passwd"
  { grep -v '^logkeep:' /etc/passwd || true
    echo "logkeep:x:$(id -u):$(id -g)::/tmp:/usr/sbin/nologin"; } > "$passwd"
  export NSS_WRAPPER_PASSWD="$passwd" NSS_WRAPPER_GROUP=/etc/group LD_PRELOAD=libnss_wrapper.so
fi

case "${1:-}" in
executor)
  # SPARK_JAVA_OPT_<n>, in the order of n: the driver's spark.* settings and the extra Java options.
  mapfile -d '' -t options < <(env -0 | grep -z '^SPARK_JAVA_OPT_[0-9]*=' | sort -z -t_ -k4n | sed -z 's/^[^=]*=//')
  # The image's archive of classes holds for a class path that begins with the jars, in the order of their names.
  jars=$(printf ':%s' "$SPARK_HOME"/jars/*.jar)
  archive=()
  if [[ -n "${LOGKEEP_CLASS_ARCHIVE:-}" ]]; then  # as logkeep_engine.spark.classes has it
    archive=("-XX:SharedArchiveFile=$LOGKEEP_CLASS_ARCHIVE" -Xshare:auto -XX:+UnlockDiagnosticVMOptions
      -XX:ArchiveRelocationMode=0 -Xlog:disable -Xlog:all=error:stderr)
  fi
  # Python workers import the installed pyspark: with a Spark home the JVM would put a zip of it first.
  exec env -u SPARK_HOME tini -s -- "$JAVA_HOME/bin/java" "${archive[@]}" "${options[@]}" \
    -Xms"${SPARK_EXECUTOR_MEMORY}" -Xmx"${SPARK_EXECUTOR_MEMORY}" \
    -cp "${jars#:}${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}${SPARK_CONF_DIR:+:$SPARK_CONF_DIR}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
driver)
  shift
  exec tini -s -- python3 -m logkeep_engine.spark.driver "$@"
  ;;
*)
  exec "$@"
  ;;
esac
