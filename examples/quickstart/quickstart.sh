#!/usr/bin/env bash
# A backup and a restore of a Kafka of Strimzi, in ten minutes: docs/guides/strimzi-quickstart.md. Run it again after a
# failure: it does what is not done yet.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: quickstart.sh --kind | --context NAME [options]       a backup and a restore, step by step
       quickstart.sh --kind | --context NAME clean           take away what it has made

Where:
  --kind                    a cluster of its own, made by kind: logkeep-quickstart
  --context NAME            a cluster that is there, by its context in the kubeconfig

With what is there already:
  --kafka HOST:PORT,...     brokers without TLS and login, in place of Strimzi and its Kafka
  --topic REGEX             the topics to archive there, in place of orders; may be repeated
  --s3 URL                  an object store, in place of a server in the cluster; it must have the bucket.
                            Its keys are read from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
  --bucket NAME             its bucket: backups
  --chart CHART             Logkeep's chart: a folder, a file or an address
  --version VERSION         its version
  --values FILE             more of its values
  --wait SECONDS            how long to wait for one thing: 600
TEXT
}

namespace=logkeep-quickstart
chart=oci://registry.logkeep.dev/charts/logkeep
version=0.1.0
strimzi=1.2.0
kind='' context='' kafka='' s3='' bucket=backups values='' patience=600 action=run topics=() chosen=''

refuse() { printf 'quickstart.sh: %s\n' "$*" >&2; exit 2; }
fail() { printf '\n' >&2; printf '%s\n' "$@" >&2; exit 1; }
step() { printf '\n== %s\n' "$*"; }
tell() { printf '   %s\n' "$@"; }

while (($#)); do
  case $1 in
  -h | --help) usage; exit 0 ;;
  --kind) kind=1 ;;
  clean) action=clean ;;
  --context | --kafka | --topic | --s3 | --bucket | --chart | --version | --values | --wait)
    [[ ${2:---} != --* ]] || refuse "$1 needs a value"
    case $1 in
    --context) context=$2 ;;
    --kafka) kafka=$2 ;;
    --topic) topics+=("$2") ;;
    --s3) s3=${2%/} ;;
    --bucket) bucket=$2 chosen="--bucket" ;;
    --chart) chart=$2 ;;
    --version) version=$2 ;;
    --values) values=$2 ;;
    --wait) patience=$2 ;;
    esac
    shift
    ;;
  *) refuse "there is no option $1; --help lists them" ;;
  esac
  shift
done

here=$(cd "$(dirname "$0")" && pwd)
k() { kubectl --context "$context" "$@"; }
n() { k --namespace "$namespace" "$@"; }
h() { helm --kube-context "$context" "$@"; }

needs() {
  command -v "$1" >/dev/null || fail "The program $1 is not on PATH." "Install it: $2"
}

check() {
  [[ $patience =~ ^[1-9][0-9]{0,5}$ ]] || refuse "--wait takes a number of seconds, not $patience"
  [[ -z $kind || -z $context ]] || refuse "give either --kind or --context, not both"
  [[ $kafka || ${#topics[@]} == 0 ]] || refuse "--topic is for your own brokers: give --kafka, too"
  [[ -z $kafka || ${#topics[@]} -gt 0 ]] || refuse "which topics of $kafka? Give --topic REGEX, such as --topic 'orders.*'"
  [[ $s3 || -z $chosen ]] || refuse "--bucket is for your own object store: give --s3, too"
  [[ -z $s3 || $s3 =~ ^https?://[][A-Za-z0-9.:_-]+$ ]] || refuse "--s3 takes a URL without a path, such as https://minio.example:9000, not $s3"
  [[ -z $values || -r $values ]] || refuse "--values: there is no file $values"
  [[ $bucket =~ ^[a-z0-9][a-z0-9.-]+$ ]] || refuse "--bucket: $bucket is no name of a bucket"
  needs kubectl https://kubernetes.io/docs/tasks/tools
  needs helm https://helm.sh/docs/intro/install
  if [[ $kind ]]; then
    needs kind https://kind.sigs.k8s.io/docs/user/quick-start
    context=kind-$namespace
  elif [[ -z $context ]]; then
    refuse "into which cluster? Give --kind, or --context with one of: $(kubectl config get-contexts -o name | paste -sd' ' -)"
  fi
  if [[ $s3 && $action == run ]]; then
    [[ ${AWS_ACCESS_KEY_ID:-} && ${AWS_SECRET_ACCESS_KEY:-} ]] ||
      refuse "--s3 needs its keys in the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
  fi
}

# Calls a function each two seconds until it succeeds; what it prints says what is still missing. A function that exits
# with 3 says that it is in vain.
await() {
  local what=$1 ask=$2 began=$SECONDS said='' state='' code
  while true; do
    code=0
    state=$("$ask" 2>&1) || code=$?
    ((code)) || break
    if ((code == 3)); then
      fail "$what: it has failed. $state" "${@:3}"
    elif ((SECONDS - began >= patience)); then
      fail "$what: not within $patience s (--wait). The last that was seen: ${state:-nothing}" "${@:3}"
    fi
    if [[ $state != "$said" ]] || (((SECONDS - began) % 10 < 2)); then
      tell "$((SECONDS - began)) s: waiting for $what${state:+: $state}"
      said=$state
    fi
    sleep 2
  done
  tell "$what: ready after $((SECONDS - began)) s"
}

field() { # of a resource, as JSONPath
  n get "$1" --ignore-not-found -o "jsonpath=$2"
}

namespace_free() {
  [[ $(k get namespace "$namespace" --ignore-not-found -o 'jsonpath={.status.phase}') != Terminating ]] && return
  echo "the one of an earlier quick start is on its way out"
  return 1
}

kafka_ready() {
  local state
  state=$(field kafka/prod '{range .status.conditions[*]}{.type}={.status} {.reason} {.message} {end}')
  [[ $state == *Ready=True* ]] && return
  echo "${state:-Strimzi has not answered yet}"
  return 1
}

user_ready() {
  [[ $(field kafkauser/logkeep '{.status.conditions[?(@.type=="Ready")].status}') == True ]] && return
  echo "the User Operator has not made its Secret yet"
  return 1
}

s3_ready() {
  [[ $(field deployment/s3 '{.status.readyReplicas}') == 1 ]] && return
  n get pods --selector app=s3 -o 'jsonpath={range .items[*]}{.status.phase} {range .status.containerStatuses[*]}{.state.waiting.reason} {.state.waiting.message}{end}{end}'
  return 1
}

run_over() { # of the resource in $run, when the operator has seen what was applied and asked for last
  local phase reason seen
  seen=$(field "$run" '{.metadata.generation} {.metadata.annotations.logkeep\.dev/run}{.metadata.annotations.logkeep\.dev/retry}')
  if [[ $seen != "$(field "$run" '{.status.observedGeneration} {.status.lastHandledRun}{.status.lastHandledRetry}')" ]]; then
    echo "the operator has not seen it yet"
    return 1
  fi
  phase=$(field "$run" '{.status.phase}')
  reason=$(field "$run" '{.status.conditions[?(@.type=="Ready")].reason} {.status.conditions[?(@.type=="Ready")].message}')
  case $phase in
  Succeeded) return ;;
  Failed | Invalid) echo "$phase, $reason"; return 3 ;;
  esac
  echo "$phase $(field "$run" '{.status.progress.display}') $reason"
  return 1
}

# A run that failed is not begun again by applying the same resource: an annotation asks for it.
once_more() {
  [[ $(field "$run" '{.status.phase}') != Failed ]] || n annotate "$run" "logkeep.dev/$1=$(date +%s)" --overwrite >/dev/null
}

look_over() {
  [[ $(field job/look '{.status.succeeded}') == 1 ]] && return
  [[ $(field job/look '{.status.conditions[?(@.type=="Failed")].status}') != True ]] || { n logs job/look; return 3; }
  echo "its pod has not ended yet"
  return 1
}

# Reads a resource on standard input, takes each patch into it and applies it.
apply() {
  local patch resource kind
  resource=$(cat)
  for patch in "$@"; do
    kind=merge
    [[ $patch != \[* ]] || kind=json
    resource=$(n patch --local -f - --type="$kind" -p "$patch" -o yaml <<<"$resource")
  done
  n apply -f - <<<"$resource" | sed 's/^/   /'
}

list() { # in JSON
  local word joined=''
  for word in "$@"; do
    word=${word//\\/\\\\}
    joined+=",\"${word//\"/\\\"}\""
  done
  printf '[%s]' "${joined:1}"
}

make_cluster() {
  step "A cluster: kind create cluster --name $namespace"
  if kind get clusters 2>/dev/null | grep -qx "$namespace"; then
    tell "it is there already"
  else
    kind create cluster --name "$namespace" ||
      fail "kind could not make a cluster; what it said is above. Does 'docker info' work for you?"
  fi
}

reach() {
  step "The cluster of the context $context"
  local answer
  answer=$(k get --raw /version 2>&1) ||
    fail "$answer" "kubectl does not reach the cluster of the context $context: see 'kubectl config get-contexts'."
  tell "Kubernetes $(sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p' <<<"$answer")"
}

others() {
  local found
  found=$(k get deployments --all-namespaces --selector app.kubernetes.io/name=logkeep \
    -o 'jsonpath={range .items[*]}{.metadata.namespace} {end}')
  for found in $found; do
    [[ $found == "$namespace" ]] ||
      fail "Logkeep runs in the namespace $found already, and two operators would act on the same resources." \
        "Follow https://logkeep.dev/docs/start.html with that one, or give another cluster."
  done
}

install_kafka() {
  step "Strimzi $strimzi, and a Kafka of one node"
  h upgrade --install strimzi strimzi-kafka-operator --repo https://strimzi.io/charts/ --version "$strimzi" \
    --namespace "$namespace" --wait --timeout "${patience}s" >/dev/null ||
    fail "Helm could not install Strimzi; what it said is above." \
      "If Strimzi runs in the cluster already, give its brokers: --kafka HOST:PORT --topic REGEX"
  apply <"$here/kafka.yaml"
  await "the Kafka prod" kafka_ready "kubectl --context $context -n $namespace describe kafka prod"
  await "the KafkaUser logkeep" user_ready "kubectl --context $context -n $namespace describe kafkauser logkeep"
  step "A thousand orders"
  if [[ $(field kafkatopic/orders '{.metadata.annotations.quickstart}') == filled ]]; then
    tell "they are there already"
    return
  fi
  seq -f '{"order": %g}' 1000 | n exec -i prod-node-0 -- bin/kafka-console-producer.sh \
    --bootstrap-server localhost:9092 --topic orders >/dev/null ||
    fail "The records could not be written; what the producer said is above."
  n annotate kafkatopic orders quickstart=filled >/dev/null
  tell "written to the topic orders"
}

install_s3() {
  if [[ $s3 ]]; then
    step "The object store $s3"
    keys "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"
    return
  fi
  step "An S3 server in the cluster"
  s3=http://s3.$namespace:7070
  [[ $(field secret/archive-s3 '{.metadata.name}') ]] || keys quickstart "$(head -c 24 /dev/urandom | base64 | tr '+/' '-_')"
  n apply -f "$here/s3.yaml" | sed 's/^/   /'
  await "the S3 server" s3_ready "kubectl --context $context -n $namespace describe pods -l app=s3"
}

# The Secret with the keys. They go through standard input: everybody can read a command line.
keys() {
  n apply -f - <<YAML | sed 's/^/   /'
apiVersion: v1
kind: Secret
metadata: {name: archive-s3}
data:
  accessKeyId: $(printf %s "$1" | base64 | tr -d '\n')
  secretAccessKey: $(printf %s "$2" | base64 | tr -d '\n')
YAML
}

install_logkeep() {
  step "Logkeep: helm install logkeep $chart"
  local more=()
  [[ -z $values ]] || more+=(--values "$values")
  [[ $chart != oci://* ]] || more+=(--version "$version")
  h upgrade --install logkeep "$chart" --namespace "$namespace" "${more[@]+"${more[@]}"}" \
    --set "engine.allowed.endpoints={$s3}" --wait --timeout "${patience}s" >/dev/null ||
    fail "Helm could not install Logkeep; what it said is above." "kubectl --context $context -n $namespace get pods,events"
  tell "the operator is ready; it may send keys to $s3"
}

ours() { # the patch of a resource of ours for another Kafka
  local brokers
  IFS=, read -ra brokers <<<"$kafka"
  printf '{"spec": {"cluster": {"strimzi": null, "kafkaUserRef": null, "bootstrapServers": %s}}}' "$(list "${brokers[@]}")"
}

backup() {
  step "A backup: kubectl apply -f backup.yaml"
  local patches=() storage
  [[ -z $kafka ]] || patches+=("$(ours)" "{\"spec\": {\"topics\": {\"include\": $(list "${topics[@]}")}}}")
  storage="{\"uri\": \"s3://$bucket/quickstart\", \"endpoint\": \"$s3\"}"
  apply "{\"spec\": {\"storage\": $storage}}" "${patches[@]+"${patches[@]}"}" <"$here/backup.yaml"
  run=kafkabackup/quickstart
  once_more run
  await "the backup" run_over "kubectl --context $context -n $namespace describe $run"
  saved=$(field "$run" '{.status.archive.records}')
  [[ $saved -gt 0 ]] || fail "The topics hold no record: nothing can be shown with them."
  tell "$saved records are in s3://$bucket/quickstart"
}

look() {
  step "A look into the archive: logkeep inspect s3://$bucket/quickstart"
  local operator image policy first=/spec/template/spec/containers/0
  operator=$(n get deployments --selector app.kubernetes.io/name=logkeep -o name)
  image=$(field "$operator" '{.spec.template.spec.containers[0].env[?(@.name=="LOGKEEP_ENGINE_IMAGE")].value}')
  policy=$(field "$operator" '{.spec.template.spec.containers[0].env[?(@.name=="LOGKEEP_ENGINE_PULL_POLICY")].value}')
  n delete job look --ignore-not-found >/dev/null
  apply "[
    {\"op\": \"replace\", \"path\": \"$first/image\", \"value\": \"$image\"},
    {\"op\": \"add\", \"path\": \"$first/imagePullPolicy\", \"value\": \"${policy:-IfNotPresent}\"},
    {\"op\": \"replace\", \"path\": \"$first/command/2\", \"value\": \"s3://$bucket/quickstart\"},
    {\"op\": \"replace\", \"path\": \"$first/args/1\", \"value\": \"$s3\"}
  ]" <"$here/look.yaml"
  await "the command" look_over "kubectl --context $context -n $namespace describe job look"
  n logs job/look
}

restore() {
  step "A restore beside the topics that are there: kubectl apply -f restore.yaml"
  local patches=()
  [[ -z $kafka ]] || patches+=("$(ours)")
  apply "${patches[@]+"${patches[@]}"}" <"$here/restore.yaml"
  run=kafkarestore/quickstart
  once_more retry
  await "the restore" run_over "kubectl --context $context -n $namespace describe $run"
}

compare() {
  step "A comparison: what has the restore read back (verify: Full)?"
  local outcome compared
  outcome=$(field "$run" '{.status.verification.outcome}')
  compared=$(field "$run" '{.status.verification.records}')
  [[ $outcome == Verified && $compared == "$saved" ]] ||
    fail "The archive has $saved records, and $compared of the restored topics were compared: $outcome" \
      "kubectl --context $context -n $namespace describe $run"
  tell "$compared of $saved records were compared with the archive, one by one: all are equal, in order, and nothing is missing"
}

clean() {
  if [[ $kind ]]; then
    step "Taking away the cluster: kind delete cluster --name $namespace"
    if kind get clusters 2>/dev/null | grep -qx "$namespace"; then
      kind delete cluster --name "$namespace"
    else
      tell "there was nothing: kind has no cluster $namespace"
    fi
    return
  fi
  reach
  step "Taking away what the quick start has made"
  if [[ ! $(k get namespace "$namespace" --ignore-not-found -o name) ]]; then
    tell "there was nothing: the cluster has no namespace $namespace"
    return
  fi
  # Whoever looks after a resource must still be there when it goes: first the resources, then the operators.
  local resource
  for resource in kafkarestores.logkeep.dev kafkabackups.logkeep.dev kafkatopics.kafka.strimzi.io \
    kafkausers.kafka.strimzi.io kafkas.kafka.strimzi.io kafkanodepools.kafka.strimzi.io; do
    [[ ! $(k get crd "$resource" --ignore-not-found -o name) ]] ||
      n delete "$resource" --all --timeout "${patience}s" | sed 's/^/   /'
  done
  local release
  for release in logkeep strimzi; do
    ! h status "$release" --namespace "$namespace" >/dev/null 2>&1 ||
      h uninstall "$release" --namespace "$namespace" --ignore-not-found --wait | sed 's/^/   /'
  done
  k delete namespace "$namespace" --ignore-not-found --timeout "${patience}s" | sed 's/^/   /'
  tell "Left on purpose: the CRDs of Logkeep and Strimzi, with which all their resources would go" \
    "(kubectl get crds | grep -e logkeep.dev -e strimzi.io); with --kafka the topics restored.…; with --s3 the archive."
}

check
if [[ $action == clean ]]; then
  clean
  exit
fi
[[ -z $kind ]] || make_cluster
reach
others
await "the namespace $namespace" namespace_free "kubectl --context $context describe namespace $namespace"
k apply -f "$here/namespace.yaml" | sed 's/^/   /'
[[ $kafka ]] || install_kafka
install_s3
install_logkeep
backup
look
restore
compare
where="--context $context"
[[ -z $kind ]] || where=--kind
step "Done in $((SECONDS / 60)) min $((SECONDS % 60)) s. What to try now:"
tell "kubectl --context $context -n $namespace get kafkabackups,kafkarestores,jobs,pods" \
  "kubectl --context $context -n $namespace annotate kafkabackup quickstart logkeep.dev/run=\"\$(date -Is)\" --overwrite" \
  "$0 $where clean"
