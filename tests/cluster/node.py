"""A whole Kubernetes node in a network namespace of its own: control plane, containerd, kubelet, kube-proxy.

The namespace is tied to the machine by one veth pair and has no other way out, so nothing a test does can leave the
machine. The machine's end is a client only: API server, brokers and S3 servers of a test listen inside, on the node's
address, where both pods and the test process reach them:

    machine 10.201.<n>.1 ── veth ── 10.201.<n>.2 node │ 10.202.<n>.0/24 pods │ 10.203.<n>.0/24 services

`n` is the first number no other node uses, so several can run at once. There is no cluster DNS: pods use addresses,
and the API server's from their environment (KUBERNETES_SERVICE_HOST).

The machine must let root make namespaces, cgroups and overlay mounts. With the old cgroup hierarchies kubelet is told
to accept them. kubelet sets some of the kernel's panic and overcommit settings for the whole machine.
"""

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import yaml

from tests.cluster import cache, containerd, system, tools
from tests.cluster.apiserver import ControlPlane
from tests.cluster.containerd import Containerd
from tests.cluster.images import Archive
from tests.cluster.kube_api import KubeApi, path_of
from tests.cluster.process import Process, wait_until
from tests.cluster.state import State, cgroup_folders

NAME = "node0"


class Node:
    """Starts on entering the context, with the base images in place; `load` adds Logkeep's.

    `kubeconfig` works in the test process; `ip` is the node's address, `netns` the name of its network namespace for
    `KafkaBroker(host=node.ip, netns=node.netns)` and `S3Server(host=node.ip, netns=node.netns)`.
    """

    def __enter__(self) -> Self:
        with ThreadPoolExecutor() as pool:  # builds what is missing; here, so that a failure leaves nothing behind
            seed, _ = pool.submit(containerd.seed), pool.submit(tools.kube).result()
            planted = seed.result()
        self._state = State.create("node")
        self._slot, number = _take_slot()
        self._processes: list[Process] = []
        self.netns = self._state.path.name.replace("node", "lk")
        self.ip, self.gateway = f"10.201.{number}.2", f"10.201.{number}.1"
        self._pods, services = f"10.202.{number}.0/24", f"10.203.{number}.0/24"
        try:
            self._make_network()
            self._make_cgroup()
            self._containerd = Containerd(self._state, self.netns)
            self._processes.append(self._containerd.process)
            self._containerd.plant(planted)
            self._control = ControlPlane(self._state, self.ip, self.netns, services)
            self._write_configuration()
            self._containerd.start()
            self._control.start()
            self._start_parts()
            self._processes += self._control.processes
            wait_until(self._schedulable, 240, "node Ready")
        except BaseException as problem:
            problem.add_note("\n".join(self._tails()))
            self.__exit__(None)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._state.destroy(grace=0)
        for process in self._processes:
            process.kill()  # ended already: this collects its exit status
        self._slot.close()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return self._control.kubeconfig

    @property
    def url(self) -> str:
        """The API's address, for the test process and for pods with host networking."""
        return self._control.url

    def kubectl(
        self, *arguments: str | Path, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the cluster's administrator."""
        return self._control.kubectl(*arguments, check=check, stdin=stdin)

    @cached_property
    def connection(self) -> KubeApi:
        """The administrator's connection to the API."""
        return KubeApi(self.kubeconfig)

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get ... -o json`, decoded."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)
        return found

    def load(self, image: Archive) -> str:
        """Bring an image into the node; returns the name pods use, with `imagePullPolicy: Never`."""
        self._containerd.load(image)
        return image.name

    def collect_logs(self, folder: Path) -> None:
        """Write events, descriptions and logs of all pods, and the logs of the node's parts."""
        views = {
            "events": ["get", "events", "-A", "--sort-by=.lastTimestamp"],
            "objects": ["get", "all,configmaps", "-A", "-o", "wide"],
            "pods": ["describe", "pods", "-A"],
            "jobs": ["describe", "jobs", "-A"],
            "logkeep": ["get", "kafkabackups,kafkarestores", "-A", "-o", "yaml"],
        }
        for name, words in views.items():
            done = self.kubectl(*words, check=False)
            (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
        for pod in self._state.path.glob("pod-logs/*/*/*.log"):
            (folder / ("_".join(pod.relative_to(self._state.path / "pod-logs").parts))).write_bytes(pod.read_bytes())
        for log in self._state.path.glob("*.log"):
            (folder / f"node-{log.name}").write_bytes(log.read_bytes())

    def _tails(self) -> list[str]:
        return [
            f"{log.name}: {''.join(log.open(errors='replace').readlines()[-5:])}"
            for log in self._state.path.glob("*.log")
        ]

    def _make_network(self) -> None:
        (self._state.path / "netns").write_text(self.netns)
        system.run(["ip", "netns", "add", self.netns])
        outside = self.netns
        system.run(["ip", "link", "add", outside, "type", "veth", "peer", "name", "host0", "netns", self.netns])
        system.run(["ip", "address", "add", f"{self.gateway}/30", "dev", outside])
        system.run(["ip", "link", "set", outside, "up"])
        inside = [
            "link set lo up",
            f"address add {self.ip}/30 dev host0",
            "link set host0 up",
            # Service addresses need a route before kube-proxy's rules see them; this one leads nowhere.
            "link add nowhere type bridge",
            "link set nowhere up",
            "route add default dev nowhere",
        ]
        for line in inside:
            system.run(system.in_namespace(self.netns, ["ip", *line.split()]))
        forward = "net.ipv4.ip_forward=1"
        system.run(system.in_namespace(self.netns, ["sysctl", "--quiet", "--write", forward]))

    def _make_cgroup(self) -> None:
        (self._state.path / "cgroup").write_text(self.netns)
        if system.cgroup_v2():
            controllers = (system.CGROUPS / "cgroup.controllers").read_text().split()
            for controller in controllers:
                with contextlib.suppress(OSError):  # one that cannot be passed on; kubelet says so if it needs it
                    (system.CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        for folder in cgroup_folders(self.netns):
            folder.mkdir(exist_ok=True)
            # A new cpuset of the old hierarchy is empty and takes no process.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if not (folder / setting).read_text().strip():
                        (folder / setting).write_text((folder.parent / setting).read_text())

    def _write_configuration(self) -> None:
        network = {
            "cniVersion": "0.4.0",
            "name": self.netns,
            "plugins": [
                {
                    "type": "ptp",  # routed, not bridged: every packet between pods passes kube-proxy's rules
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": self._pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": str(self._state.path / "pod-addresses"),
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        (self._containerd.folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        authority = self._control.authority
        serving = authority.issue("kubelet-server", f"/CN={NAME}", f"DNS:{NAME},IP:{self.ip}")
        kubelet = authority.issue("kubelet", f"/O=system:nodes/CN=system:node:{NAME}")
        self._kubelet_kubeconfig = self._control.write_kubeconfig("kubelet", kubelet)
        self._write_yaml(
            "kubelet",
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "authentication": {
                    "anonymous": {"enabled": False},
                    "webhook": {"enabled": True},
                    "x509": {"clientCAFile": str(authority.cert)},
                },
                "authorization": {"mode": "Webhook"},
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{self.netns}",
                "containerRuntimeEndpoint": f"unix://{self._containerd.socket}",
                "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
                "failCgroupV1": system.cgroup_v2(),
                "failSwapOn": False,
                "imageGCHighThresholdPercent": 100,
                "maxPods": 60,
                "oomScoreAdj": 0,
                "podLogsDir": str(self._state.path / "pod-logs"),
                "resolvConf": "",
                "tlsCertFile": str(serving.cert),
                "tlsPrivateKeyFile": str(serving.key),
                "volumePluginDir": str(self._state.path / "volume-plugins"),
            },
        )
        self._write_yaml(
            "kube-proxy",
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "clientConnection": {"kubeconfig": str(self.kubeconfig)},
                "clusterCIDR": self._pods,
                "conntrack": {"maxPerCore": 0},
                "hostnameOverride": NAME,
                "mode": "iptables",
            },
        )

    def _write_yaml(self, part: str, content: Mapping[str, Any]) -> None:
        (self._state.path / f"{part}.yaml").write_text(yaml.safe_dump(content))

    def _start_parts(self) -> None:
        control, folder = self._control, self._state.path
        admin = f"--kubeconfig={self.kubeconfig}"
        control.run(
            "kube-controller-manager",
            [
                admin,
                f"--service-account-private-key-file={control.service_accounts.key}",
                "--leader-elect=false",
                f"--root-ca-file={control.authority.cert}",
                f"--cluster-signing-cert-file={control.authority.cert}",
                f"--cluster-signing-key-file={control.authority.key}",
                "--use-service-account-credentials",
            ],
        )
        control.run("kube-scheduler", [admin, "--leader-elect=false"])
        control.run(
            "kubelet",
            [
                f"--config={folder / 'kubelet.yaml'}",
                f"--kubeconfig={self._kubelet_kubeconfig}",
                f"--node-ip={self.ip}",
                f"--hostname-override={NAME}",
                f"--root-dir={folder / 'kubelet'}",
            ],
        )
        control.run("kube-proxy", [f"--config={folder / 'kube-proxy.yaml'}"])

    def _schedulable(self) -> bool:
        """Whether a pod would start at once: the node is Ready and untainted, the default service account exists."""
        for process in self._processes:
            if not process.running:
                raise RuntimeError(f"{process.name} ended\n{process.output[-3000:]}")
        if self.connection.get(path_of("default", "serviceaccount", "default")) is None:
            return False
        node = self.connection.get(f"/api/v1/nodes/{NAME}")
        if node is None:
            return False
        ready = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}.get("Ready")
        return ready == "True" and not node["spec"].get("taints")


def _take_slot() -> tuple[IO[str], int]:
    """The lowest number no other node holds and whose subnet the machine does not use; held by a file lock."""
    folder = cache.root() / "locks"
    folder.mkdir(exist_ok=True)
    routes = system.run(["ip", "-4", "route", "show"]).stdout
    for number in range(1, 250):
        handle = (folder / f"node-{number}.lock").open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            continue
        if f"10.201.{number}." not in routes:
            os.set_inheritable(handle.fileno(), False)
            return handle, number
        handle.close()
    raise RuntimeError("no free network for a node: all of 10.201.1.0 to 10.201.249.0 are taken")
