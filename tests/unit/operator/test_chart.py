"""The Helm chart: what it renders, what it refuses, and that it gives the operator what the operator can hand on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine import __version__
from logkeep_engine.contract.names import ENDPOINTS_CONFIG_MAP, KEY_ENDPOINTS, PLURALS
from logkeep_engine.kafka.internal import INTERNAL_TOPICS
from logkeep_operator.selfcheck import needed, needed_for_lease
from logkeep_operator.settings import Concurrency, from_environ
from tests.cluster import chart, names, system, tools
from tests.unit.operator.chart import CHART, ROOT, VALUES, environment, one, render


def test_lint() -> None:
    system.run([tools.helm(), "lint", "--strict", CHART])


def test_the_charts_own_tests_pass() -> None:
    system.run([tools.helm_unittest(), CHART])


def test_a_test_of_the_chart_that_fails_is_seen(tmp_path: Path) -> None:
    suite = tmp_path / "wrong_test.yaml"
    suite.write_text("""\
suite: wrong
templates: [deployment.yaml]
tests:
  - it: is wrong
    asserts:
      - isKind: {of: Service}
""")
    with pytest.raises(system.CommandFailed, match="1 failed"):
        system.run([tools.helm_unittest(), "--file", suite, CHART])


def test_the_readme_is_current() -> None:
    assert chart.README.read_text() == chart.readme(), "make chart writes it"


def test_the_readme_shows_what_a_comment_says_and_takes_none_of_it_for_markup() -> None:
    lines = chart.readme().splitlines()
    (driver,) = (line for line in lines if line.startswith("| `engine.defaults.driver` |"))
    assert " `{memory: 1Gi, podTemplate: {spec: {nodeSelector: {pool: batch}, tolerations: [{" in driver
    assert driver.endswith("}]}}}`. |")
    assert not [line for line in lines if re.search(r"<\w", line)], "Markdown takes <release> for a tag of HTML"


def test_the_operator_understands_the_charts_environment() -> None:
    default = from_environ(environment())
    assert default.engine.image == names.image("engine")
    assert default.namespaces == ()
    settings = from_environ(
        environment(
            "watchNamespaces={a,b}", "imagePullSecrets[0].name=one", "imagePullSecrets[1].name=two",
            "maxConcurrentRuns.operator=9", "maxConcurrentRuns.namespace=2", "maxConcurrentRuns.namespaces.team-a=1",
            "maxConcurrentRuns.namespaces.team-b=0", "kueue.enabled=true",
            "engine.image.repository=r.example/e", "engine.image.tag=v9",
            "engine.image.pullPolicy=Never", "logLevel=DEBUG",
        )
    )  # fmt: skip
    assert settings.namespaces == ("a", "b")
    assert (settings.engine.image, settings.engine.pull_policy) == ("r.example/e:v9", "Never")
    assert settings.engine.pull_secrets == ("one", "two")
    assert settings.log_level == "DEBUG"
    assert default.concurrency == Concurrency(5)
    assert settings.concurrency == Concurrency(9, 2, {"team-a": 1, "team-b": 0}, kueue=True)


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ((), f"r.example/i:{__version__}"),
        (("tag=v9",), "r.example/i:v9"),
        ((f"digest={DIGEST}",), f"r.example/i@{DIGEST}"),
        (("tag=v9", f"digest={DIGEST}"), f"r.example/i:v9@{DIGEST}"),
    ],
)
def test_images_can_be_named_by_what_they_hold(values: tuple[str, ...], image: str) -> None:
    said = ("repository=r.example/i", *values)
    sets = [f"{where}.{value}" for where in ("image", "engine.image") for value in said]
    pod = one("Deployment", *sets)["spec"]["template"]["spec"]
    assert [container["image"] for container in pod["containers"]] == [image]
    assert from_environ(environment(*sets)).engine.image == image
    assert [container["image"] for container in one("Pod", *sets)["spec"]["containers"]] == [image]


def test_the_default_images_are_the_released_ones() -> None:
    (container,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == names.image("operator")
    assert from_environ(environment()).engine.image == names.image("engine")


@pytest.mark.parametrize("host", ["registry.example", "localhost", "registry:5000", "[fd00::1]:5000"])
def test_an_image_may_come_from_any_registry(host: str) -> None:
    assert from_environ(environment(f"engine.image.repository={host}/e")).engine.image.startswith(f"{host}/e:")


def test_operators_are_two_on_different_nodes_and_restricted() -> None:
    spec = one("Deployment")["spec"]
    assert spec["replicas"] == 2
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"] == spec["selector"]
    single = one("Deployment", "replicas=1", "priorityClassName=high")["spec"]["template"]["spec"]
    assert "affinity" not in single
    assert single["priorityClassName"] == "high"


OPENSHIFT = ("security.openshift.io/v1",)


@pytest.mark.parametrize(
    ("value", "apis", "user"),
    [
        ("Auto", (), 185),
        ("Auto", OPENSHIFT, None),
        ("Fixed", OPENSHIFT, 185),
        ("Platform", (), None),
    ],
)
def test_on_openshift_no_pod_asks_for_an_id(value: str, apis: tuple[str, ...], user: int | None) -> None:
    set_user = f"engine.user={value}"
    assert from_environ(environment(set_user, apis=apis)).engine.user == user
    ids = {} if user is None else {"runAsUser": user, "runAsGroup": user}
    expected = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **ids}
    pods = [one("Deployment", set_user, apis=apis)["spec"]["template"]["spec"], one("Pod", set_user, apis=apis)["spec"]]
    assert [pod["securityContext"] for pod in pods] == [expected, expected]


def test_what_resources_may_ask_for_reaches_the_operator() -> None:
    default = from_environ(environment()).engine
    assert (default.allowed_images, default.allowed_accounts, default.allowed_endpoints) == ((), (), ())
    said = (
        "engine.allowed.images={registry.example/*,b}", "engine.allowed.serviceAccounts={team-*}",
        "engine.allowed.endpoints={https://*.storage:9000,http://minio}",
    )  # fmt: skip
    engine = from_environ(environment(*said)).engine
    assert engine.allowed_endpoints == ("https://*.storage:9000", "http://minio")
    assert (engine.allowed_images, engine.allowed_accounts) == (("registry.example/*", "b"), ("team-*",))
    assert not default.allowed_code
    assert from_environ(environment("engine.allowed.code=true")).engine.allowed_code


def policies(*values: str, version: str = "1.34.0") -> list[dict[str, Any]]:
    return [body for body in render(*values, version=version) if body["kind"].startswith("ValidatingAdmissionPolicy")]


def test_drivers_are_held_to_the_lists_by_the_api_server_unless_the_chart_says_otherwise() -> None:
    names = sorted((body["metadata"]["name"], body["kind"].removeprefix("Validating")) for body in policies())
    assert names == [
        (f"sys-logkeep-{what}-of-drivers", kind)
        for what in ("configmaps", "pods")
        for kind in ("AdmissionPolicy", "AdmissionPolicyBinding")
    ]
    assert len(policies(version="1.30.2-gke.7")) == 4
    assert policies("admissionPolicies.enabled=false") == []
    assert policies("watchNamespaces={a}") == []
    assert policies(version="1.29.9") == []


def kept(at: int, cluster: str, backup: str) -> list[str]:
    """Values: the KafkaTopics of a cluster are deleted only when a KafkaBackup has archived them."""
    fields = {"namespace": "kafka", "cluster": cluster, "backup.namespace": "team", "backup.name": backup}
    return [f"admissionPolicies.kafkaTopics[{at}].{field}={value}" for field, value in fields.items()]


def test_kafkatopics_are_kept_where_the_chart_says_so() -> None:
    clusters = [*kept(0, "p", "nightly"), *kept(1, "q", "weekly")]
    policy, *bindings = (body for body in policies(*clusters) if "kafkatopics" in body["metadata"]["name"])
    assert [binding["metadata"]["name"] for binding in bindings] == [f"sys-logkeep-kafkatopics-kafka.{n}" for n in "pq"]
    assert {binding["spec"]["policyName"] for binding in bindings} == {policy["metadata"]["name"]}
    (internal,) = (item for item in policy["spec"]["variables"] if item["name"] == "internal")
    assert set(re.findall(r'"(\w+)"', internal["expression"])) == INTERNAL_TOPICS
    for off in ("watchNamespaces={a}", "admissionPolicies.enabled=false"):
        with pytest.raises(system.CommandFailed, match=r"admissionPolicies\.kafkaTopics needs"):
            policies(off, *clusters)
    with pytest.raises(system.CommandFailed, match="names cluster kafka/p twice"):
        policies(*kept(0, "p", "nightly"), *kept(1, "p", "weekly"))


def test_clusters_whose_names_are_alike_when_joined_are_kept_by_a_binding_each() -> None:
    alike = [*kept(0, "b-c", "nightly"), *kept(1, "c", "weekly")]
    places = ["admissionPolicies.kafkaTopics[0].namespace=a", "admissionPolicies.kafkaTopics[1].namespace=a-b"]
    _, *bindings = (body for body in policies(*alike, *places) if "kafkatopics" in body["metadata"]["name"])
    assert len({binding["metadata"]["name"] for binding in bindings}) == 2


def test_the_operator_is_asked_for_health_and_metrics_and_for_nothing_else() -> None:
    peers = "networkPolicies.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring"
    monitoring = [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]
    for values, sources in (((), [None, None]), ((peers,), [None, monitoring])):
        spec = one("NetworkPolicy", *values)["spec"]
        assert spec["podSelector"] == one("Deployment")["spec"]["selector"]
        assert spec["policyTypes"] == ["Ingress"]
        assert [rule["ports"] for rule in spec["ingress"]] == [[{"port": "health"}], [{"port": "metrics"}]]
        assert [rule.get("from") for rule in spec["ingress"]] == sources
    assert from_environ(environment()).engine.network_policies


def test_without_network_policies_there_are_none() -> None:
    off = "networkPolicies.enabled=false"
    assert not [body for body in render(off) if body["kind"] == "NetworkPolicy"]
    assert not from_environ(environment(off)).engine.network_policies


def test_names_in_the_lists_of_the_policies_are_no_patterns_but_for_their_stars() -> None:
    sets = ("engine.allowed.images={r.example/*:1.?}", "admissionPolicies.serviceAccounts={own.a}")
    pods, *_ = policies(*sets)
    (condition,) = pods["spec"]["matchConditions"]
    assert "(logkeep-engine|own\\\\.a)$" in condition["expression"]
    ours = re.escape(names.image("engine")).replace("\\-", "-").replace("\\", "\\\\")
    assert rf"^({ours}|r\\.example/.*:1\\.\\?)$" in json.dumps(pods["spec"]).replace("\\\\", "\\")


def test_the_plugin_finds_the_allowed_endpoints_where_no_tenant_writes() -> None:
    assert one("ConfigMap")["data"] == {"endpoints": ""}
    bodies = [
        body
        for body in render("engine.allowed.endpoints={https://a,http://b:9000}")
        if body["metadata"]["name"] == ENDPOINTS_CONFIG_MAP
    ]
    config_map, role, binding = bodies
    assert {body["metadata"]["namespace"] for body in bodies} == {"sys"}
    assert config_map["data"][KEY_ENDPOINTS].split() == ["https://a", "http://b:9000"]
    (rule,) = role["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["configmaps"], ["logkeep-endpoints"], ["get"])
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("logkeep-endpoints", "system:authenticated")


def test_a_drain_takes_one_of_the_operators_pods() -> None:
    assert one("PodDisruptionBudget")["spec"]["selector"] == one("Deployment")["spec"]["selector"]


def test_replicas_agree_on_one_lease_which_they_may_write_and_no_other() -> None:
    settings = from_environ(environment("leaderElection.leaseDurationSeconds=30"))
    lease = settings.lease
    assert lease is not None
    assert (lease.namespace, lease.name, lease.duration, lease.renew_deadline) == ("sys", "logkeep", 30, 10)
    (role,) = (body for body in render("userRoles=false") if body["kind"] == "Role")
    assert role["metadata"]["namespace"] == "sys"
    given = {
        (verb, group, resource, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    assert given == {(right.verb, right.group, right.resource, right.name) for right in needed_for_lease(lease)}


NAMESPACED = ["watchNamespaces={a}"]


def test_no_service_of_the_namespace_sets_a_variable_of_the_operator() -> None:
    """Kubernetes would: LOGKEEP_METRICS_PORT for a Service named logkeep-metrics."""
    bodies = render()
    pods = [body["spec"] for body in bodies if body["kind"] == "Pod"]
    pods += [body["spec"]["template"]["spec"] for body in bodies if body["kind"] == "Deployment"]
    assert [pod["enableServiceLinks"] for pod in pods] == [False, False]


@pytest.mark.parametrize("values", [[], NAMESPACED], ids=["ClusterRole", "Role"])
def test_permissions_are_what_the_operator_uses(values: list[str]) -> None:
    rules = one("Role" if values else "ClusterRole", *values)["rules"]
    given = {
        (verb, group, resource, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    settings = from_environ(environment(*values))
    for right in needed(settings):
        what = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
        assert (right.verb, right.group, what, right.name) in given
    assert not any(
        resource == "secrets" or "*" in (group, resource, verb) or verb == "escalate"
        for verb, group, resource, _ in given
    )
    deleted = {resource for verb, _, resource, name in given if verb.startswith("delete") and not name}
    assert deleted == {"jobs", "pods", "configmaps", "kafkabackupruns"}


@pytest.mark.parametrize("values", [[], NAMESPACED], ids=["ClusterRole", "Role"])
def test_the_operator_binds_the_drivers_role_which_deletes_nothing(values: list[str]) -> None:
    role = from_environ(environment(*values)).engine.driver_role
    (found,) = (body for body in render(*values) if (body["kind"], body["metadata"]["name"]) == (role.kind, role.name))
    assert [(rule["resources"], rule["verbs"]) for rule in found["rules"]] == [
        (["pods"], ["get", "list", "watch", "create"]),
        (["configmaps"], ["patch"]),
    ]


def test_watched_namespaces_get_roles_and_nothing_is_cluster_wide() -> None:
    bodies = render("watchNamespaces={a,b}")
    assert not [body for body in bodies if body["kind"].startswith("Cluster")]
    roles = sorted((b["metadata"]["namespace"], b["metadata"]["name"]) for b in bodies if b["kind"] == "Role")
    assert roles == [
        ("a", "logkeep"), ("a", "logkeep-driver"), ("b", "logkeep"), ("b", "logkeep-driver"),
        ("sys", "logkeep-endpoints"), ("sys", "logkeep-lease"),
    ]  # fmt: skip


AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


def test_roles_for_people_are_part_of_the_clusters_roles() -> None:
    roles = {
        body["metadata"]["name"]: sorted(
            name.removeprefix(AGGREGATE) for name in body["metadata"]["labels"] if name.startswith(AGGREGATE)
        )
        for body in render()
        if body["kind"] == "ClusterRole" and not body["metadata"]["name"].startswith("sys-logkeep")
    }
    assert roles == {
        "logkeep-view": ["admin", "edit", "view"],
        "logkeep-edit": ["admin", "edit"],
        "logkeep-admin": ["admin"],
        "logkeep-run": [],
    }


def test_kafka_resources_beside_the_watched_namespaces_can_be_read_and_nothing_else() -> None:
    roles = {
        body["metadata"]["namespace"]: body["rules"]
        for body in render("watchNamespaces={a,b}", "strimzi.namespaces={kafka,a}")
        if body["kind"] == "Role" and body["metadata"]["name"] == "logkeep-strimzi"
    }
    assert roles == {"kafka": [{"apiGroups": ["kafka.strimzi.io"], "resources": ["kafkas"], "verbs": ["get"]}]}
    bodies = render("watchNamespaces={a}", "strimzi.namespaces={kafka}")
    (bound,) = (b for b in bodies if b["kind"] == "RoleBinding" and b["metadata"]["namespace"] == "kafka")
    assert bound["roleRef"]["name"] == "logkeep-strimzi"
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "logkeep", "namespace": "sys"}]
    names = [body["metadata"]["name"] for body in render("strimzi.namespaces={kafka}") if body["kind"] == "Role"]
    assert names == ["logkeep-endpoints", "logkeep-lease"]


@pytest.mark.parametrize(
    "value",
    [
        "bogus=1", "strimzi.namespaces={A}", "strimzi.x=1", "userRoles=no", "image.name=x", "logLevel=LOUD",
        "workers=0", "watchNamespaces={A}", "metrics.service.port=0", "replicas=-1", "leaderElection.enabled=false",
        "podDisruptionBudget.maxUnavailable=0",
        "image.digest=sha256:12", f"engine.image.digest={DIGEST}0", f"engine.image.digest=sha512:{'0' * 64}",
        "engine.user=root", "engine.allowed.image={x}", "engine.allowed.images={a b}",
        "engine.allowed.endpoints={minio}", "engine.allowed.endpoints={https://u@minio}",
        "maxConcurrentRuns.operator=-1", "maxConcurrentRuns.namespace=Half", "kueue.enabled=maybe",
        "maxConcurrentRuns.namespaces.A=1",
        "engine.allowed.code=yes", "networkPolicies.enabled=1", "networkPolicies.metricsFrom={all}",
        "admissionPolicies.enabled=Auto", "admissionPolicies.serviceAccounts={a*}",
        "admissionPolicies.kafkaTopics[0].cluster=prod",
    ],
)  # fmt: skip
def test_wrong_values_are_refused(value: str) -> None:
    with pytest.raises(system.CommandFailed, match="values don't meet the specifications"):
        render(value)


@pytest.mark.parametrize("value", ["leaderElection.renewDeadlineSeconds=15", "leaderElection.retryPeriodSeconds=10"])
def test_times_with_which_no_replica_could_act_are_refused(value: str) -> None:
    with pytest.raises(system.CommandFailed, match="leaderElection: leaseDurationSeconds must be greater than"):
        render(value)


def test_every_value_is_in_the_schema_and_documented() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    of_others = {"enabled"}  # a chart that this one is a part of
    assert set(yaml.safe_load(text)) == set(schema["properties"]) - of_others


def fields_of(part: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, item in part.get("properties", {}).items():
        found += [f"{path}{name}", *fields_of(item, f"{path}{name}.")]
        found += fields_of(item.get("items", {}), f"{path}{name}[].")
    return found


def refusals_of(part: dict[str, Any]) -> list[str]:
    found = [rule["message"] for rule in part.get("x-kubernetes-validations", [])]
    for item in [*part.get("properties", {}).values(), part.get("items", {})]:
        found += refusals_of(item) if item else []
    return found


@pytest.mark.parametrize(("kind", "plural"), PLURALS.items())
def test_the_reference_names_every_field(kind: str, plural: str) -> None:
    reference = (ROOT / "docs/reference/crds.md").read_text()
    schema = yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text())["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    section = reference[reference.index(f"## {kind} ") :]
    rows = set(re.findall(r"^- \*{0,2}([\w.\[\]]+)\*{0,2} \(", section, re.MULTILINE))
    for part in ("spec", "status"):
        assert set(fields_of(schema["properties"][part])) <= rows
    lines = section.split("### status")[0].replace("\n  ", " ")
    said = set(re.findall(r"^- `[\w.\[\]]+`: (.*)$", lines, re.MULTILINE))
    assert set(refusals_of(schema["properties"]["spec"])) == said


def without(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The values without one of them."""
    name, *below = path
    rest = {key: value for key, value in values.items() if key != name}
    return {**rest, name: without(values[name], tuple(below))} if below else rest


def paths_of(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in values.items():
        found.append((*path, name))
        if isinstance(value, dict) and name not in ("resources", "podSecurityContext", "securityContext"):
            found += paths_of(value, (*path, name))
    return found


@pytest.mark.parametrize("path", paths_of(VALUES), ids=".".join)
def test_a_value_that_an_earlier_version_did_not_have_is_named_or_does_not_matter(
    path: tuple[str, ...], tmp_path: Path
) -> None:
    """`helm upgrade --reuse-values` renders with the values of the release before, defaults included."""
    chart = tmp_path / "logkeep"
    shutil.copytree(CHART, chart)
    (chart / "values.yaml").write_text(yaml.safe_dump(without(VALUES, path)))
    done = system.run([tools.helm(), "template", "logkeep", chart, "--kube-version", "1.34.0"], check=False)
    if done.returncode:
        assert f"missing property '{path[-1]}'" in done.stderr
    else:
        assert [body for body in yaml.safe_load_all(done.stdout) if body] != []
    required = path[-1] not in MISSED
    assert bool(done.returncode) or not required or path[0] in OPTIONAL


MISSED = ("registry", "tag", "digest", "name", "labels", "grafana_dashboard", "annotations", "namespaces", "disabled")
OPTIONAL = {
    *("imagePullSecrets", "podAnnotations", "podLabels", "nodeSelector", "tolerations", "affinity"),
    *("priorityClassName", "topologySpreadConstraints", "nameOverride", "fullnameOverride", "global"),
    *("extraEnv", "extraVolumes", "extraVolumeMounts"),
}


def test_the_chart_is_part_of_another_one(tmp_path: Path) -> None:
    """Its values are below its name there, with what the other chart switches it on by."""
    chart = tmp_path / "platform"
    (chart / "templates").mkdir(parents=True)
    dependency = {"name": "logkeep", "version": __version__, "condition": "logkeep.enabled"}
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about))
    shutil.copytree(CHART, chart / "charts/logkeep")
    values = {"global": {"domain": "x"}, "logkeep": {"enabled": True, "replicas": 1}}
    (chart / "values.yaml").write_text(yaml.safe_dump(values))

    def rendered(*more: str) -> list[dict[str, Any]]:
        command: list[str | Path] = [tools.helm(), "template", "infra", chart, "--namespace", "sys", *more]
        done = system.run([*command, "--kube-version", "1.34.0"])
        return [body for body in yaml.safe_load_all(done.stdout) if body]

    (deployment,) = (body for body in rendered() if body["kind"] == "Deployment")
    assert (deployment["metadata"]["name"], deployment["spec"]["replicas"]) == ("infra-logkeep", 1)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == names.image("operator")
    assert rendered("--set", "logkeep.enabled=false") == []
