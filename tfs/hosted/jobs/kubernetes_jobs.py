"""Runs the replicas of jobs as StatefulSets that lie in a Kubernetes cluster already.

Somebody applies the manifests of a job (``deploy/kubernetes/fleet``), with its memory and
processors; here it is only scaled. Kubernetes starts again what ends, and drains what is one
too many. Nothing but ``scale`` of its API is used, so the role that this needs is small.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final

from tfs.core.clock import Clock
from tfs.core.errors import FailedPrecondition
from tfs.hosted.jobs.job_runtime import JobSpec, Replica

log = logging.getLogger(__name__)

PORT: Final = 8500
_LOOK_S: Final = 2.0
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
        clock: Times looks.

    """

    def __init__(self, api: Any, namespace: str, clock: Clock) -> None:
        self._api, self._namespace, self._clock = api, namespace, clock
        # Guards all that follows; notified when a look ended. Leaf.
        self._changed = threading.Condition()
        self._wanted: dict[str, int] = {}
        # How many pods each has, or what is wrong.
        self._seen: dict[str, int | str] = {}
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name="kubernetes-jobs", daemon=True
        )
        self._thread.start()

    def ensure(self, spec: JobSpec) -> None:
        self._want({spec.name: spec.num_replicas})

    def remove(self, name: str) -> None:
        self._want({name: 0})

    def jobs(self) -> Collection[str]:
        with self._changed:
            return sorted(
                name
                for name, number in self._wanted.items()
                if number or self._seen.get(name) != 0
            )

    def replicas(self, name: str) -> Sequence[Replica]:
        with self._changed:
            number, seen = self._wanted.get(name, 0), self._seen.get(name, 0)
        has, problem = (seen, "") if isinstance(seen, int) else (0, seen)
        return [
            Replica(self._address(name, index), index < has, problem)
            for index in range(number)
        ]

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    def _want(self, numbers: dict[str, int]) -> None:
        with self._changed:
            if not numbers.items() <= self._wanted.items():
                self._wanted |= numbers
                self._changed.notify_all()

    def _address(self, name: str, index: int) -> str:
        return f"tfs-{name}-{index}.tfs-fleet.{self._namespace}.svc:{PORT}"

    def _run(self) -> None:
        while True:
            with self._changed:
                wanted = dict(self._wanted)
            seen = {name: self._scaled(name, each) for name, each in wanted.items()}
            with self._changed:
                self._seen = seen
                self._changed.notify_all()
                if not self._is_closing and wanted == self._wanted:
                    self._clock.wait(self._changed, self._clock.now() + _LOOK_S)
                if self._is_closing:
                    return

    def _scaled(self, name: str, number: int) -> int | str:
        """Has a StatefulSet the number of pods that it should; returns how many it has."""
        where = f"tfs-{name}", self._namespace
        try:
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
        except Exception as error:  # of the client's, and of urllib3's
            return f"StatefulSet {where[0]} in {where[1]} cannot be scaled: {error}"
