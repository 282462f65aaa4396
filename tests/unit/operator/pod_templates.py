"""A pod template with every field that a template can have."""

from __future__ import annotations

from typing import Any

ROLES = ("driver", "executor")
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"logkeep.dev/role": "executor"}},
    "matchLabelKeys": ["logkeep.dev/run"],
    "minDomains": 2,
    "nodeAffinityPolicy": "Honor",
    "nodeTaintsPolicy": "Ignore",
}
PASSED_ON: dict[str, Any] = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [
        {"key": "dedicated", "operator": "Equal", "value": "backup", "effect": "NoExecute", "tolerationSeconds": 60},
        {"operator": "Exists"},
    ],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}},
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
    },
    "topologySpreadConstraints": [SPREAD],
    "priorityClassName": "low",
    "runtimeClassName": "gvisor",
    "schedulerName": "volcano",
    "serviceAccountName": "own",
}
SECURITY: dict[str, Any] = {
    "runAsUser": 1000,
    "runAsGroup": 0,
    "fsGroup": 2000,
    "fsGroupChangePolicy": "Always",
    "supplementalGroups": [3000],
    "seLinuxOptions": {"level": "s0:c1,c2"},
    "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/strict.json"},
}
KINDS: dict[str, Any] = {
    "configMap": {"name": "a"},
    "csi": {"driver": "secrets-store.csi.k8s.io"},
    "downwardAPI": {"items": []},
    "emptyDir": {"sizeLimit": "1Gi"},
    "ephemeral": {"volumeClaimTemplate": {}},
    "persistentVolumeClaim": {"claimName": "a"},
    "projected": {"sources": []},
    "secret": {"secretName": "a"},
}


def whole(role: str) -> dict[str, Any]:
    """A template with every field."""
    return {
        "metadata": {"labels": {"team": "data"}, "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            **PASSED_ON,
            "imagePullSecrets": [{"name": "mirror"}],
            "securityContext": SECURITY,
            "volumes": [{"name": kind.lower(), kind: source} for kind, source in KINDS.items()],
            "containers": [
                {
                    "name": role,
                    "env": [
                        {"name": "TZ", "value": "UTC"},
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    ],
                    "volumeMounts": [{"name": "secret", "mountPath": "/mnt/a", "readOnly": True, "subPath": "b"}],
                }
            ],
        },
    }
