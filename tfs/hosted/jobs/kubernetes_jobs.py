"""Runs the replicas of jobs as StatefulSets that lie in a Kubernetes cluster already.

Somebody applies the manifests of a job (``deploy/kubernetes/fleet``), with its memory and
processors; here it is only scaled. Kubernetes starts again what ends, and drains what is one
too many. Nothing but ``scale`` of its API is used, so the role that this needs is small.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from tfs.core.errors import FailedPrecondition
from tfs.hosted.jobs.job_runtime import JobSpec, Replica, Seen

log = logging.getLogger(__name__)

PORT: Final = 8500
_TIMEOUT_S: Final = 5.0


def connect() -> Any:
    """Returns the client of the cluster that this runs in, or that ~/.kube/config names.

    Raises:
        FailedPrecondition: The extra is missing, or there is no cluster.

    """
    try:
        import kubernetes
    except ImportError as error:
        raise FailedPrecondition(
            "jobs on Kubernetes need the extra k8s: pip install 'tfs[k8s]'"
        ) from error
    try:
        kubernetes.config.load_config()
    except kubernetes.config.ConfigException as error:
        raise FailedPrecondition(f"no Kubernetes cluster: {error}") from error
    return kubernetes.client.AppsV1Api()


class KubernetesJobs:
    """Implements :class:`~tfs.hosted.jobs.job_runtime.JobRuntime`, but for limits.

    Args:
        api: What :func:`connect` returned.
        namespace: Where the StatefulSets and their headless service ``tfs-fleet`` are.

    """

    look_s = 2.0

    def __init__(self, api: Any, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._seen: Seen = {}

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        numbers = dict.fromkeys(self._seen, 0)
        numbers |= {name: spec.num_replicas for name, spec in specs.items()}
        seen = {}
        for name, number in numbers.items():
            has, problem = 0, ""
            try:
                has = self._scaled(name, number)
            except Exception as error:  # of the client's, and of urllib3's
                problem = (
                    f"StatefulSet tfs-{name} in {self._namespace} cannot be scaled: "
                    f"{error}"
                )
            if name in specs or has or problem:
                seen[name] = [
                    Replica(
                        self._address(name, index),
                        problem or ("" if index < has else "its pod is not there yet"),
                    )
                    for index in range(number)
                ]
        self._seen = seen
        return seen

    def _address(self, name: str, index: int) -> str:
        return f"tfs-{name}-{index}.tfs-fleet.{self._namespace}.svc:{PORT}"

    def _scaled(self, name: str, number: int) -> int:
        """Has a StatefulSet the number of pods that it should; returns how many it has."""
        where = f"tfs-{name}", self._namespace
        found = self._api.read_namespaced_stateful_set_scale(
            *where, _request_timeout=_TIMEOUT_S
        )
        if (found.spec.replicas or 0) != number:
            log.info("event=job_scaled job=%s replicas=%d", name, number)
            body = {"spec": {"replicas": number}}
            found = self._api.patch_namespaced_stateful_set_scale(
                *where, body, _request_timeout=_TIMEOUT_S
            )
        return int(found.status.replicas or 0) if found.status else 0
