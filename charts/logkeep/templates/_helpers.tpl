{{- define "logkeep.chartName" -}}
{{- default "logkeep" .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* What the chart's objects are called. */}}
{{- define "logkeep.name" -}}
{{- $chart := include "logkeep.chartName" . }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $chart .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $chart | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "logkeep.serviceAccount" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.create is false: serviceAccount.name must name an account that is there" }}
{{- end }}
{{- default (include "logkeep.name" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "logkeep.selector" -}}
app.kubernetes.io/name: {{ include "logkeep.chartName" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "logkeep.labels" -}}
{{ include "logkeep.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: logkeep
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The labels of what is there for a moment only. They must not be those by which the operator's pods are found. */}}
{{- define "logkeep.hookLabels" -}}
app.kubernetes.io/name: {{ include "logkeep.chartName" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: crds
app.kubernetes.io/part-of: logkeep
{{- end }}

{{/* Takes the values of an image (image), where they are (at), and the whole chart (root). Without a registry in front,
whoever pulls an image takes it from Docker's own, where it is somebody else's. */}}
{{- define "logkeep.image" -}}
{{- $repository := .image.repository }}
{{- if or (contains "@" $repository) (regexMatch ":[^/]*$" $repository) }}
{{- fail (printf "%s.repository is %s: put the tag into %s.tag, and the digest into %s.digest" .at $repository .at .at) }}
{{- end }}
{{- if or (contains "@" (default "" .image.tag)) (contains ":" (default "" .image.tag)) }}
{{- fail (printf "%s.tag is %s: put the digest into %s.digest" .at .image.tag .at) }}
{{- end }}
{{- $host := "^([^/]*[.:][^/]*|localhost)/" }}
{{- with default (.root.Values.global).imageRegistry .image.registry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll $host $repository "") }}
{{- end }}
{{- if not (regexMatch (printf "%s." $host) $repository) }}
{{- fail (printf "image.repository and engine.image.repository begin with the name of a registry, such as registry.example/logkeep-operator. %s has none" $repository) }}
{{- end }}
{{- $repository }}
{{- if or .image.tag (not .image.digest) }}:{{ default .root.Chart.AppVersion .image.tag }}{{ end }}
{{- if .image.digest }}@{{ .image.digest }}{{ end }}
{{- end }}

{{- define "logkeep.operatorImage" -}}
{{ include "logkeep.image" (dict "image" .Values.image "at" "image" "root" .) }}
{{- end }}

{{- define "logkeep.engineImage" -}}
{{ include "logkeep.image" (dict "image" .Values.engine.image "at" "engine.image" "root" .) }}
{{- end }}

{{/* The names of the Secrets for pulling images, as a list in JSON. Other charts have texts in the global list. */}}
{{- define "logkeep.pullSecrets" -}}
{{- $names := list }}
{{- range concat (default list (.Values.global).imagePullSecrets) (default list .Values.imagePullSecrets) }}
{{- $names = append $names (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name")) }}
{{- end }}
{{- uniq $names | toJson }}
{{- end }}

{{/* The role of drivers. Accounts of one's own can be bound to it as well. */}}
{{- define "logkeep.driverRole" -}}
{{- if .Values.watchNamespaces }}{{ include "logkeep.name" . }}-driver{{ else }}{{ printf "%s-%s-driver" .Release.Namespace (include "logkeep.name" .) }}{{ end }}
{{- end }}

{{- define "logkeep.driverRoleKind" -}}
{{- if .Values.watchNamespaces }}Role{{ else }}ClusterRole{{ end }}
{{- end }}

{{/* A driver makes executors and watches them, and writes its progress. It changes and deletes no pod, since Kubernetes
cannot say "only your own". */}}
{{- define "logkeep.driverRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [patch]
{{- end }}

{{/* Not empty where the policies are made. They are of the whole cluster, as nothing is with watchNamespaces. */}}
{{- define "logkeep.admissionPolicies" -}}
{{- if and .Values.admissionPolicies.enabled (not .Values.watchNamespaces) (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* A regular expression for a list of names, in which * stands for any characters. */}}
{{- define "logkeep.patterns" -}}
{{- $found := list }}
{{- range . }}{{ $found = append $found (regexQuoteMeta . | replace "\\*" ".*") }}{{ end }}
{{- join "|" $found }}
{{- end }}

{{/* The CSI drivers of Secrets and certificates, as the operator has them. */}}
{{- define "logkeep.csiDrivers" -}}
["csi.cert-manager.io", "csi.spiffe.io", "secrets-store.csi.k8s.io"]
{{- end }}

{{/* The topics of Kafka's own, as the engine has them. */}}
{{- define "logkeep.internalTopics" -}}
["__cluster_metadata", "__consumer_offsets", "__remote_log_metadata", "__share_group_state", "__transaction_state"]
{{- end }}

{{/* Fixed or Platform: who gives pods their user and groups. */}}
{{- define "logkeep.user" -}}
{{- if ne .Values.engine.user "Auto" }}{{ .Values.engine.user }}
{{- else if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}Platform
{{- else }}Fixed
{{- end }}
{{- end }}

{{- define "logkeep.podSecurityContext" -}}
{{- if eq (include "logkeep.user" .) "Platform" }}
{{- toYaml (omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup") }}
{{- else }}
{{- toYaml .Values.podSecurityContext }}
{{- end }}
{{- end }}

{{/* What the operator needs where resources are. */}}
{{- define "logkeep.rules" -}}
- apiGroups: [logkeep.dev]
  resources: [kafkabackups, kafkarestores]
  verbs: [get, list, watch]
- apiGroups: [logkeep.dev]
  resources: [kafkabackups/status, kafkarestores/status]
  verbs: [patch]
# Those with which people ask for runs are answered, get their KafkaBackup as owner, and are deleted after their time.
- apiGroups: [logkeep.dev]
  resources: [kafkabackupruns]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [logkeep.dev]
  resources: [kafkabackupruns/status]
  verbs: [patch]
- apiGroups: [logkeep.dev]
  resources: [kafkaarchives]
  verbs: [get, list, watch]
- apiGroups: [logkeep.dev]
  resources: [kafkaarchives/status]
  verbs: [patch]
# Where OwnerReferencesPermissionEnforcement is on, blockOwnerDeletion needs this.
- apiGroups: [logkeep.dev]
  resources: [kafkabackups/finalizers, kafkarestores/finalizers]
  verbs: [update]
# Addresses and certificate authorities of Strimzi's clusters. No Secret is read.
- apiGroups: [kafka.strimzi.io]
  resources: [kafkas]
  verbs: [get]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [create]
{{- if .Values.engine.defaults.serviceAccountAnnotations }}
# Accounts that were there before get the annotations, too.
- apiGroups: [""]
  resources: [serviceaccounts]
  resourceNames: [logkeep-engine, logkeep-executor]
  verbs: [get, patch]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
# Executors whose driver has ended.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, delete]
# The accounts of drivers get this role, and no other.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ include "logkeep.driverRoleKind" . | lower }}s]
  resourceNames: [{{ include "logkeep.driverRole" . }}]
  verbs: [bind]
# The role of a RoleBinding cannot be changed: one of another installation is deleted and created again.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  resourceNames: [logkeep-driver]
  verbs: [get, patch, delete]
# Who may connect to drivers and executors.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
{{- end }}
